from paidonce.providers.alipay.provider import configure as configure
