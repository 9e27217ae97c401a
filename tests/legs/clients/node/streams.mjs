// Each stream command of node-redis: node streams.mjs PORT prints a line for each reply.
import { createClient } from "redis";

const options = { socket: { host: "127.0.0.1", port: Number(process.argv[2]) } };
const redis = await createClient(options).connect();
const other = await createClient(options).connect();
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function say(command, ...words) {
  let reply;
  try {
    reply = await redis[command](...words);
  } catch (error) {
    reply = error.message;
  }
  console.log(command, JSON.stringify(words), JSON.stringify(reply));
}

const fields = { a: "1" };
for (const id of ["1-0", "2-0", "3-0", "4-0", "5-0", "1-0"]) await say("xAdd", "s", id, fields);
await say("xAdd", "none", "1-0", fields, { NOMKSTREAM: true });
await say("xAdd", "s", "6-0", fields, { TRIM: { strategy: "MAXLEN", strategyModifier: "=", threshold: 5 } });
await say("xAdd", "s", "7-0", fields, { TRIM: { strategy: "MAXLEN", strategyModifier: "~", threshold: 1, limit: 9 } });
await say("xAdd", "s", "8-0", fields, { TRIM: { strategy: "MINID", threshold: "3-0" } });
for (const how of [{ IDMP: { pid: "p", iid: "m" } }, { IDMPAUTO: { pid: "p" } }]) {
  const twice = [1, 2].map(() => redis.xAdd("i", "*", fields, how));
  console.log("xAdd", JSON.stringify(how), "twice", new Set(await Promise.all(twice)).size);
}
await say("xCfgSet", "i", { IDMP_DURATION: 50, IDMP_MAXSIZE: 9 });
await say("xLen", "i");
await say("xLen", "s");
await say("xRange", "s", "-", "+", { COUNT: 3 });
await say("xRange", "s", "(4-0", "6-0");
await say("xRevRange", "s", "+", "-", { COUNT: 2 });
await say("xRead", { key: "s", id: "0" }, { COUNT: 2 });
await say("xRead", { key: "s", id: "99" }, { BLOCK: 20 });
await say("xGroupCreate", "s", "g", "0");
await say("xGroupCreate", "s", "g", "0");
await say("xGroupCreate", "t", "g", "$", { MKSTREAM: true, ENTRIESREAD: 0 });
await say("xGroupCreateConsumer", "s", "g", "idle");
await say("xReadGroup", "g", "c", { key: "s", id: ">" }, { COUNT: 4 });
await say("xReadGroup", "g", "c", { key: "s", id: "0" }, { COUNT: 2 });
await say("xReadGroup", "g", "c", { key: "s", id: ">" }, { COUNT: 1, NOACK: true });
await say("xReadGroup", "none", "c", { key: "s", id: ">" });
await say("xAck", "s", "g", ["3-0", "77-0"]);
await say("xPending", "s", "g");
const pending = await redis.xPendingRange("s", "g", "-", "+", 9, { consumer: "c", IDLE: 0 });
console.log("xPendingRange", pending.map((one) => [one.id, one.consumer, one.deliveriesCounter]));
await say("xClaim", "s", "g", "d", 0, "4-0", { RETRYCOUNT: 7 });
await say("xClaimJustId", "s", "g", "d", 0, "7-0", { FORCE: true });
await say("xAutoClaim", "s", "g", "e", 0, "0", { COUNT: 1 });
await say("xAutoClaimJustId", "s", "g", "e", 0, "5-0");
await say("xInfoStream", "s");
await say("xInfoGroups", "s");
console.log("xInfoConsumers", (await redis.xInfoConsumers("s", "g")).map((one) => [one.name, one.pending]));
await say("xAckDel", "s", "g", "4-0", "ACKED");
await say("xDelEx", "s", ["5-0", "77-0"], "DELREF");
await say("xDel", "s", ["6-0", "77-0"]);
await say("xTrim", "s", "MAXLEN", 2);
await say("xTrim", "s", "MINID", "8-0", { strategyModifier: "~", LIMIT: 5 });
await say("xSetId", "s", "9-0", { ENTRIESADDED: 20 });
await say("xGroupSetId", "s", "g", "7-0", { ENTRIESREAD: 5 });
await say("xGroupDelConsumer", "s", "g", "e");
const added = pause(200).then(() => other.xAdd("t", "1-0", fields));
await say("xReadGroup", "g", "c", { key: "t", id: ">" }, { BLOCK: 9000 });
await added;
await say("xGroupDestroy", "s", "g");
await say("xInfoGroups", "none");
redis.destroy();
other.destroy();
