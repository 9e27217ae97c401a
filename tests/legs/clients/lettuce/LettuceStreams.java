import io.lettuce.core.Consumer;
import io.lettuce.core.Limit;
import io.lettuce.core.Range;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.StreamDeletionPolicy;
import io.lettuce.core.XAddArgs;
import io.lettuce.core.XAutoClaimArgs;
import io.lettuce.core.XCfgSetArgs;
import io.lettuce.core.XClaimArgs;
import io.lettuce.core.XGroupCreateArgs;
import io.lettuce.core.XPendingArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.XReadArgs.StreamOffset;
import io.lettuce.core.XTrimArgs;
import io.lettuce.core.api.sync.RedisCommands;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Each stream command of Lettuce: java LettuceStreams PORT prints a line for each reply. */
public class LettuceStreams {
    interface Ask {
        Object reply() throws Exception;
    }

    static void say(String command, Ask ask) throws Exception {
        Object reply;
        try {
            reply = ask.reply();
        } catch (RedisCommandExecutionException error) {
            reply = error.getMessage();
        }
        System.out.println(command + "\t" + reply);
    }

    static XAddArgs at(long number) {
        return new XAddArgs().id(number + "-0");
    }

    static StreamOffset<String> from(String stream, String id) {
        return StreamOffset.from(stream, id);
    }

    public static void main(String[] words) throws Exception {
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + words[0]);
        RedisCommands<String, String> redis = client.connect().sync();
        Map<String, String> fields = Map.of("a", "1");
        Consumer<String> c = Consumer.from("g", "c"), d = Consumer.from("g", "d"), e = Consumer.from("g", "e");
        Range<String> all = Range.unbounded();
        for (int n = 1; n <= 5; n++) {
            long number = n;
            say("XADD", () -> redis.xadd("s", at(number), fields));
        }
        say("XADD smaller", () -> redis.xadd("s", at(1), fields));
        say("XADD NOMKSTREAM", () -> redis.xadd("none", at(1).nomkstream(), fields));
        say("XADD MAXLEN =", () -> redis.xadd("s", at(6).maxlen(5).exactTrimming(), fields));
        say("XADD MAXLEN ~ LIMIT", () -> redis.xadd("s", at(7).maxlen(1).approximateTrimming().limit(9), fields));
        say("XADD MINID", () -> redis.xadd("s", at(8).minId("3-0"), fields));
        XAddArgs once = new XAddArgs().idmp("p", "m"), auto = new XAddArgs().idmpAuto("p");
        say("XADD IDMP twice", () -> redis.xadd("i", once, fields).equals(redis.xadd("i", once, fields)));
        say("XADD IDMPAUTO twice", () -> redis.xadd("i", auto, fields).equals(redis.xadd("i", auto, fields)));
        say("XCFGSET", () -> redis.xcfgset("i", new XCfgSetArgs().idmpDuration(50).idmpMaxsize(9)));
        say("XLEN", () -> redis.xlen("s"));
        say("XRANGE", () -> redis.xrange("s", all, Limit.from(3)));
        say("XRANGE exclusive", () -> redis.xrange("s", Range.from(Range.Boundary.excluding("4-0"), Range.Boundary.including("6-0"))));
        say("XREVRANGE", () -> redis.xrevrange("s", all, Limit.from(2)));
        say("XREAD", () -> redis.xread(XReadArgs.Builder.count(2), from("s", "0")));
        say("XREAD BLOCK", () -> redis.xread(XReadArgs.Builder.block(20), from("s", "99")));
        say("XGROUP CREATE", () -> redis.xgroupCreate(from("s", "0"), "g"));
        say("XGROUP CREATE again", () -> redis.xgroupCreate(from("s", "0"), "g"));
        say("XGROUP CREATE MKSTREAM", () -> redis.xgroupCreate(from("t", "$"), "g", XGroupCreateArgs.Builder.mkstream().entriesRead(0)));
        say("XGROUP CREATECONSUMER", () -> redis.xgroupCreateconsumer("s", Consumer.from("g", "idle")));
        say("XREADGROUP", () -> redis.xreadgroup(c, XReadArgs.Builder.count(4), StreamOffset.lastConsumed("s")));
        say("XREADGROUP history", () -> redis.xreadgroup(c, XReadArgs.Builder.count(2), from("s", "0")));
        say("XREADGROUP NOACK", () -> redis.xreadgroup(c, XReadArgs.Builder.count(1).noack(true), StreamOffset.lastConsumed("s")));
        say("XREADGROUP no group", () -> redis.xreadgroup(Consumer.from("none", "c"), StreamOffset.lastConsumed("s")));
        say("XACK", () -> redis.xack("s", "g", "3-0", "77-0"));
        say("XPENDING", () -> redis.xpending("s", "g").getCount() + " " + redis.xpending("s", "g").getConsumerMessageCount());
        say("XPENDING range", () -> redis.xpending("s", XPendingArgs.Builder.xpending(c, all, Limit.from(9)).idle(0)).stream()
                .map(one -> one.getId() + " " + one.getConsumer() + " " + one.getRedeliveryCount()).toList());
        say("XCLAIM", () -> redis.xclaim("s", d, XClaimArgs.Builder.minIdleTime(0).retryCount(7), "4-0"));
        say("XCLAIM JUSTID", () -> redis.xclaim("s", d, XClaimArgs.Builder.justid().force(), "7-0"));
        say("XAUTOCLAIM", () -> {
            var claimed = redis.xautoclaim("s", XAutoClaimArgs.Builder.xautoclaim(e, 0, "0").count(1));
            return claimed.getId() + " " + claimed.getMessages();
        });
        say("XAUTOCLAIM JUSTID", () -> {
            var claimed = redis.xautoclaim("s", XAutoClaimArgs.Builder.justid(e, 0, "5-0"));
            return claimed.getId() + " " + claimed.getMessages();
        });
        say("XINFO STREAM", () -> redis.xinfoStream("s"));
        say("XINFO GROUPS", () -> redis.xinfoGroups("s"));
        say("XINFO CONSUMERS", () -> redis.xinfoConsumers("s", "g").stream().map(one -> ((List<?>) one).subList(0, 4)).toList());
        say("XACKDEL", () -> redis.xackdel("s", "g", StreamDeletionPolicy.ACKNOWLEDGED, "4-0"));
        say("XDELEX", () -> redis.xdelex("s", StreamDeletionPolicy.DELETE_REFERENCES, "5-0", "77-0"));
        say("XDEL", () -> redis.xdel("s", "6-0", "77-0"));
        say("XTRIM MAXLEN", () -> redis.xtrim("s", 2));
        say("XTRIM MINID", () -> redis.xtrim("s", XTrimArgs.Builder.minId("8-0").exactTrimming()));
        say("XGROUP SETID", () -> redis.xgroupSetid(from("s", "7-0"), "g"));
        say("XGROUP DELCONSUMER", () -> redis.xgroupDelconsumer("s", e));
        RedisCommands<String, String> other = client.connect().sync();
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(200);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            other.xadd("t", at(1), fields);
        });
        later.start();
        say("XREADGROUP BLOCK", () -> redis.xreadgroup(c, XReadArgs.Builder.block(9000), StreamOffset.lastConsumed("t")));
        later.join();
        say("XGROUP DESTROY", () -> redis.xgroupDestroy("s", "g"));
        say("XINFO GROUPS of none", () -> redis.xinfoGroups("none"));
        client.shutdown();
    }
}
