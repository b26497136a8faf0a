from paidonce.providers.tilda.provider import configure as configure
