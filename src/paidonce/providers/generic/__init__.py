from paidonce.providers.generic.provider import configure as configure
