import java.util.Map;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.args.StreamDeletionPolicy;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.XAddParams;
import redis.clients.jedis.params.XAutoClaimParams;
import redis.clients.jedis.params.XCfgSetParams;
import redis.clients.jedis.params.XClaimParams;
import redis.clients.jedis.params.XPendingParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.params.XReadParams;
import redis.clients.jedis.params.XTrimParams;

/** Each stream command of Jedis: java JedisStreams PORT prints a line for each reply. */
public class JedisStreams {
    interface Ask {
        Object reply() throws Exception;
    }

    static void say(String command, Ask ask) throws Exception {
        Object reply;
        try {
            reply = ask.reply();
        } catch (JedisDataException error) {
            reply = error.getMessage();
        }
        System.out.println(command + "\t" + reply);
    }

    static StreamEntryID id(long number) {
        return new StreamEntryID(number, 0);
    }

    static XAddParams at(long number) {
        return XAddParams.xAddParams().id(id(number));
    }

    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[0]);
        StreamEntryID next = StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY, first = id(0);
        XReadGroupParams one = XReadGroupParams.xReadGroupParams().count(1);
        Map<String, String> fields = Map.of("a", "1");
        try (Jedis jedis = new Jedis("127.0.0.1", port); Jedis other = new Jedis("127.0.0.1", port)) {
            for (int n = 1; n <= 5; n++) {
                long number = n;
                say("XADD", () -> jedis.xadd("s", at(number), fields));
            }
            say("XADD smaller", () -> jedis.xadd("s", at(1), fields));
            say("XADD NOMKSTREAM", () -> jedis.xadd("none", at(1).noMkStream(), fields));
            say("XADD MAXLEN =", () -> jedis.xadd("s", at(6).maxLen(5).exactTrimming(), fields));
            say("XADD MAXLEN ~ LIMIT", () -> jedis.xadd("s", at(7).maxLen(1).approximateTrimming().limit(9), fields));
            say("XADD MINID", () -> jedis.xadd("s", at(8).minId("3-0"), fields));
            XAddParams once = XAddParams.xAddParams().idmp("p", "m"), auto = XAddParams.xAddParams().idmpAuto("p");
            say("XADD IDMP twice", () -> jedis.xadd("i", once, fields).equals(jedis.xadd("i", once, fields)));
            say("XADD IDMPAUTO twice", () -> jedis.xadd("i", auto, fields).equals(jedis.xadd("i", auto, fields)));
            say("XCFGSET", () -> jedis.xcfgset("i", new XCfgSetParams().idmpDuration(50).idmpMaxsize(9)));
            say("XLEN", () -> jedis.xlen("s") + jedis.xlen("i"));
            say("XRANGE", () -> jedis.xrange("s", "-", "+", 3));
            say("XRANGE exclusive", () -> jedis.xrange("s", "(4-0", "6-0"));
            say("XREVRANGE", () -> jedis.xrevrange("s", "+", "-", 2));
            say("XREAD", () -> jedis.xread(XReadParams.xReadParams().count(2), Map.of("s", first)));
            say("XREAD as a map", () -> jedis.xreadAsMap(XReadParams.xReadParams().count(1), Map.of("s", first)));
            say("XREAD BLOCK", () -> jedis.xread(XReadParams.xReadParams().block(20), Map.of("s", id(99))));
            say("XGROUP CREATE", () -> jedis.xgroupCreate("s", "g", first, false));
            say("XGROUP CREATE again", () -> jedis.xgroupCreate("s", "g", first, false));
            say("XGROUP CREATE MKSTREAM", () -> jedis.xgroupCreate("t", "g", StreamEntryID.XGROUP_LAST_ENTRY, true));
            say("XGROUP CREATECONSUMER", () -> jedis.xgroupCreateConsumer("s", "g", "idle"));
            say("XREADGROUP", () -> jedis.xreadGroup("g", "c", one.count(4), Map.of("s", next)));
            say("XREADGROUP history", () -> jedis.xreadGroup("g", "c", one.count(2), Map.of("s", first)));
            say("XREADGROUP NOACK", () -> jedis.xreadGroup(
                    "g", "c", XReadGroupParams.xReadGroupParams().count(1).noAck(), Map.of("s", next)));
            say("XREADGROUP no group", () -> jedis.xreadGroup("none", "c", one, Map.of("s", next)));
            say("XACK", () -> jedis.xack("s", "g", id(3), id(77)));
            say("XPENDING", () -> {
                var all = jedis.xpending("s", "g");
                return all.getTotal() + " " + all.getMinId() + " " + all.getMaxId() + " " + all.getConsumerMessageCount();
            });
            say("XPENDING range", () -> jedis.xpending("s", "g", XPendingParams.xPendingParams("-", "+", 9).consumer("c")
                    .idle(0)).stream().map(entry -> entry.getID() + " " + entry.getDeliveredTimes()).toList());
            say("XCLAIM", () -> jedis.xclaim("s", "g", "d", 0, XClaimParams.xClaimParams().retryCount(7), id(4)));
            say("XCLAIM JUSTID", () -> jedis.xclaimJustId("s", "g", "d", 0, XClaimParams.xClaimParams().force(), id(7)));
            say("XAUTOCLAIM", () -> jedis.xautoclaim("s", "g", "e", 0, first, XAutoClaimParams.xAutoClaimParams().count(1)));
            say("XAUTOCLAIM JUSTID", () -> jedis.xautoclaimJustId("s", "g", "e", 0, id(5), XAutoClaimParams.xAutoClaimParams()));
            say("XINFO STREAM", () -> jedis.xinfoStream("s").getStreamInfo());
            say("XINFO STREAM FULL", () -> jedis.xinfoStreamFull("s", 2).getStreamFullInfo().keySet());
            say("XINFO GROUPS", () -> jedis.xinfoGroups("s").get(0).getGroupInfo());
            say("XINFO CONSUMERS", () -> jedis.xinfoConsumers2("s", "g").stream().map(c -> c.getName() + c.getPending()).toList());
            say("XACKDEL", () -> jedis.xackdel("s", "g", StreamDeletionPolicy.ACKNOWLEDGED, id(4)));
            say("XDELEX", () -> jedis.xdelex("s", StreamDeletionPolicy.DELETE_REFERENCES, id(5), id(77)));
            say("XDEL", () -> jedis.xdel("s", id(6), id(77)));
            say("XTRIM MAXLEN", () -> jedis.xtrim("s", 2, false));
            say("XTRIM MINID", () -> jedis.xtrim("s", XTrimParams.xTrimParams().minId("8-0").exactTrimming()));
            say("XGROUP SETID", () -> jedis.xgroupSetID("s", "g", id(7)));
            say("XGROUP DELCONSUMER", () -> jedis.xgroupDelConsumer("s", "g", "e"));
            Thread later = new Thread(() -> {
                try {
                    Thread.sleep(200);
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
                other.xadd("t", at(1), fields);
            });
            later.start();
            say("XREADGROUP BLOCK", () -> jedis.xreadGroup("g", "c", XReadGroupParams.xReadGroupParams().block(9000), Map.of("t", next)));
            later.join();
            say("XGROUP DESTROY", () -> jedis.xgroupDestroy("s", "g"));
            say("XINFO GROUPS of none", () -> jedis.xinfoGroups("none"));
        }
    }
}
