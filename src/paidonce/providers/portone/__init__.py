"""Provider `portone`: V2, and V1 (formerly iamport)."""

from paidonce.providers.portone.v2 import configure as configure
