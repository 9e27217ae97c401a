"""Payments that cannot be processed become dead letters, with all fields and a reason; the others are processed.

    python examples/dead_letters.py

Or paste it into a pyspark shell. It creates its own entries, on the bundled engine or the server of RSTREAM_URL.
"""

import os
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_streams

spark = SparkSession.builder.getOrCreate()
url = os.environ.get("RSTREAM_URL", "embedded:")

new_payments = spark.createDataFrame(
    [("ann", "12.50"), ("bob", "a lot"), ("cid", "-3.00"), ("dee", "1200.00")], "customer STRING, amount STRING"
)
new_payments.write.format("rstream").mode("append").option("url", url).option("stream", "example:payments").save()

# With mode DEADLETTER, an amount that is no number makes its entry a dead letter.
payments = (
    spark.readStream.format("rstream")
    .schema("customer STRING, amount DECIMAL(10,2), _stream STRING, _id STRING, _fields MAP<BINARY, BINARY>")
    .option("url", url)
    .option("streams", "example:payments")
    .option("group", "pay")
    .option("startingOffsets", "earliest")
    .option("mode", "DEADLETTER")
    .option("deadLetterStream", "example:payments:dead")
    .load()
    .withColumn("now", F.current_timestamp())  # time of the batch, the same when it is run again
)


# The query's own rule: an amount of 0 or less makes a dead letter, too. Each write has a name within its batch
# (`transaction`), so that a batch that is run again after a crash writes nothing twice.
def pay(batch, number):
    rule = spark_streams.route_dead_letters(batch, "amount <= 0", "pays nothing", group="pay", at=batch.now)
    good = rule.good.select("customer", "amount")
    for rows, stream, transaction in (
        (rule.letters, "example:payments:dead", "dead letters"),
        (good, "example:paid", "paid"),
    ):
        to = {"url": url, "stream": stream, "transaction": transaction}
        rows.write.format("rstream").mode("append").options(**to).save()


# In a real query the checkpoint is on permanent storage, so that the next run continues.
spark_streams.run(
    payments.writeStream.foreachBatch(pay)
    .option("checkpointLocation", tempfile.mkdtemp())
    .queryName("pay")
    .trigger(availableNow=True)
)

# `rstream dead list example:payments:dead` shows the same. `rstream dead redrive` makes dead letters entries again.
dead = spark.read.format("rstream").option("url", url).option("streams", "example:payments:dead").load()
dead.selectExpr("fields['customer'] AS customer", "fields['amount'] AS amount", "fields['dl.reason'] AS reason").show()
