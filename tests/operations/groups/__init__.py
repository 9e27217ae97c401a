"""An operator's hands on consumer groups: what they change, what they refuse, and what queries do afterwards."""
