from paidonce.providers.creem.provider import configure as configure
