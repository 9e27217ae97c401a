// Each stream command of ioredis: node ioredis.mjs PORT prints a line for each reply.
import { Redis } from "ioredis";

const redis = new Redis(Number(process.argv[2]));
const other = new Redis(Number(process.argv[2]));
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function say(command, ...words) {
  const reply = await redis[command](...words).catch((error) => error.message);
  console.log(command, ...words, JSON.stringify(reply));
  return reply;
}

for (const id of ["1-0", "2-0", "3-0", "4-0", "5-0", "1-0"]) await say("xadd", "s", id, "a", 1);
await say("xadd", "none", "NOMKSTREAM", "1-0", "a", 1);
await say("xadd", "s", "MAXLEN", 5, "6-0", "a", 1);
await say("xadd", "s", "MAXLEN", "~", 1, "LIMIT", 9, "7-0", "a", 1);
await say("xadd", "s", "MINID", "3-0", "8-0", "a", 1);
const twice = [1, 2].map(() => redis.xadd("i", "IDMP", "p", "m", "*", "a", 1));
console.log("xadd IDMP twice", new Set(await Promise.all(twice)).size);
await say("xlen", "i");
await say("xlen", "s");
await say("xrange", "s", "-", "+", "COUNT", 3);
await say("xrange", "s", "(4-0", "6-0");
await say("xrevrange", "s", "+", "-", "COUNT", 2);
await say("xread", "COUNT", 2, "STREAMS", "s", "0");
await say("xread", "BLOCK", 20, "STREAMS", "s", "99");
await say("xgroup", "CREATE", "s", "g", "0");
await say("xgroup", "CREATE", "s", "g", "0");
await say("xgroup", "CREATE", "t", "g", "$", "MKSTREAM");
await say("xgroup", "CREATECONSUMER", "s", "g", "idle");
await say("xreadgroup", "GROUP", "g", "c", "COUNT", 4, "STREAMS", "s", ">");
await say("xreadgroup", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", "0");
await say("xreadgroup", "GROUP", "g", "c", "COUNT", 1, "NOACK", "STREAMS", "s", ">");
await say("xreadgroup", "GROUP", "none", "c", "STREAMS", "s", ">");
await say("xack", "s", "g", "3-0", "77-0");
await say("xpending", "s", "g");
const pending = await redis.xpending("s", "g", "IDLE", 0, "-", "+", 9, "c");
console.log("xpending range", pending.map(([id, consumer, , count]) => [id, consumer, count]));
await say("xclaim", "s", "g", "d", 0, "4-0", "RETRYCOUNT", 7);
await say("xclaim", "s", "g", "d", 0, "7-0", "FORCE", "JUSTID");
await say("xautoclaim", "s", "g", "e", 0, "0", "COUNT", 1);
await say("xautoclaim", "s", "g", "e", 0, "5-0", "JUSTID");
await say("xinfo", "STREAM", "s");
await say("xinfo", "GROUPS", "s");
const consumers = await redis.xinfo("CONSUMERS", "s", "g");
console.log("xinfo CONSUMERS", consumers.map((one) => one.slice(0, 4)));
await say("xdel", "s", "6-0", "77-0");
await say("xtrim", "s", "MAXLEN", 2);
await say("xtrim", "s", "MINID", "~", "8-0", "LIMIT", 5);
await say("xsetid", "s", "9-0");
await say("xgroup", "SETID", "s", "g", "7-0");
await say("xgroup", "DELCONSUMER", "s", "g", "e");
const added = pause(200).then(() => other.xadd("t", "1-0", "a", 1));
await say("xreadgroup", "GROUP", "g", "c", "BLOCK", 9000, "STREAMS", "t", ">");
await added;
await say("xgroup", "DESTROY", "s", "g");
await say("xinfo", "GROUPS", "none");
redis.disconnect();
other.disconnect();
