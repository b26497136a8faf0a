from paidonce.providers.portone.v2 import configure as configure
