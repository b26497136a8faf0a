"""Sends the webhook of a paid order, as a gateway would: `python pay.py REFERENCE [URL]`."""

import json
import os
import sys
import urllib.request
from datetime import UTC, datetime

from standardwebhooks import Webhook

reference = sys.argv[1]
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000/pay/webhooks/shop"
now = datetime.now(UTC)
paid = {"payment_id": f"pay-{reference}", "order": reference, "amount": "12.50", "currency": "EUR"}
body = json.dumps({"type": "payment.succeeded", "timestamp": now.isoformat(), "data": paid})
name = f"msg-{reference}"
headers = {
    "content-type": "application/json",
    "webhook-id": name,
    "webhook-timestamp": str(int(now.timestamp())),
    "webhook-signature": Webhook(os.environ["SHOP_SECRET"]).sign(name, now, body),
}
request = urllib.request.Request(url, body.encode(), headers)  # noqa: S310 - you gave the address
with urllib.request.urlopen(request) as answer:  # noqa: S310
    print(answer.read().decode())  # noqa: T201
