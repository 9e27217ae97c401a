"""What may be removed of a stream: what every group has been given and has acknowledged, and no query holds back."""
