from paidonce.providers.stripe.provider import configure as configure
