"""Arithmetic of decimals that raises an error instead of rounding."""

from __future__ import annotations

from decimal import Context, Inexact, InvalidOperation, Overflow

EXACT = Context(prec=76, traps=[Inexact, InvalidOperation, Overflow])
