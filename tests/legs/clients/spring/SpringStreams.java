import java.time.Duration;
import java.util.Map;
import org.springframework.data.domain.Range;
import org.springframework.data.redis.connection.Limit;
import org.springframework.data.redis.connection.RedisStreamCommands.XAddOptions;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.stream.Consumer;
import org.springframework.data.redis.connection.stream.ReadOffset;
import org.springframework.data.redis.connection.stream.RecordId;
import org.springframework.data.redis.connection.stream.StreamOffset;
import org.springframework.data.redis.connection.stream.StreamReadOptions;
import org.springframework.data.redis.connection.stream.StreamRecords;
import org.springframework.data.redis.core.StreamOperations;
import org.springframework.data.redis.core.StringRedisTemplate;

/** Each stream command of Spring Data Redis: java SpringStreams PORT prints a line for each reply. */
public class SpringStreams {
    interface Ask {
        Object reply() throws Exception;
    }

    static void say(String command, Ask ask) throws Exception {
        Object reply;
        try {
            reply = ask.reply();
        } catch (RuntimeException error) {
            reply = error.getCause() == null ? error.getMessage() : error.getCause().getMessage();
        }
        System.out.println(command + "\t" + reply);
    }

    static StreamOffset<String> from(String stream, String id) {
        return StreamOffset.create(stream, ReadOffset.from(id));
    }

    public static void main(String[] words) throws Exception {
        LettuceConnectionFactory factory = new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(words[0]));
        factory.afterPropertiesSet();
        factory.start();
        StringRedisTemplate template = new StringRedisTemplate(factory);
        StreamOperations<String, String, String> redis = template.opsForStream();
        Map<String, String> fields = Map.of("a", "1");
        StreamReadOptions none = StreamReadOptions.empty();
        Consumer c = Consumer.from("g", "c");
        for (int n = 1; n <= 5; n++) {
            String id = n + "-0";
            say("XADD", () -> redis.add(StreamRecords.newRecord().in("s").withId(id).ofMap(fields)));
        }
        var record = StreamRecords.newRecord().in("s").withId("6-0").ofMap(fields);
        say("XADD smaller", () -> redis.add(StreamRecords.newRecord().in("s").withId("1-0").ofMap(fields)));
        say("XADD MAXLEN", () -> redis.add(record, XAddOptions.maxlen(5)));
        say("XADD NOMKSTREAM", () -> redis.add(record.withStreamKey("none"), XAddOptions.makeNoStream()));
        say("XLEN", () -> redis.size("s"));
        say("XRANGE", () -> redis.range("s", Range.unbounded(), Limit.limit().count(3)));
        say("XRANGE exclusive", () -> redis.range("s", Range.rightOpen("4-0", "6-0")));
        say("XREVRANGE", () -> redis.reverseRange("s", Range.unbounded()));
        say("XREAD", () -> redis.read(none.count(2), from("s", "0")));
        say("XREAD BLOCK", () -> redis.read(none.block(Duration.ofMillis(20)), from("s", "99")));
        say("XGROUP CREATE", () -> redis.createGroup("s", ReadOffset.from("0"), "g"));
        say("XGROUP CREATE again", () -> redis.createGroup("s", ReadOffset.from("0"), "g"));
        say("XGROUP CREATE MKSTREAM", () -> redis.createGroup("t", ReadOffset.latest(), "g"));
        say("XREADGROUP", () -> redis.read(c, none.count(4), StreamOffset.create("s", ReadOffset.lastConsumed())));
        say("XREADGROUP history", () -> redis.read(c, none.count(2), from("s", "0")));
        say("XREADGROUP NOACK", () -> redis.read(c, none.count(1).autoAcknowledge(), StreamOffset.create("s", ReadOffset.lastConsumed())));
        say("XACK", () -> redis.acknowledge("s", "g", "3-0", "77-0"));
        say("XPENDING", () -> redis.pending("s", "g"));
        say("XPENDING range", () -> redis.pending("s", c, Range.unbounded(), 9).stream()
                .map(one -> one.getIdAsString() + " " + one.getConsumerName() + " " + one.getTotalDeliveryCount()).toList());
        say("XCLAIM", () -> redis.claim("s", "g", "d", Duration.ZERO, RecordId.of("4-0")));
        say("XINFO STREAM", () -> {
            var info = redis.info("s");
            return info.streamLength() + " " + info.lastGeneratedId() + " " + info.firstEntryId() + " " + info.groupCount();
        });
        say("XINFO GROUPS", () -> redis.groups("s").stream().map(one -> one.getRaw()).toList());
        say("XINFO CONSUMERS", () -> redis.consumers("s", "g").stream().map(one -> one.consumerName() + one.pendingCount()).toList());
        say("XDEL", () -> redis.delete("s", "6-0", "77-0"));
        say("XTRIM", () -> redis.trim("s", 2));
        say("XGROUP DELCONSUMER", () -> redis.deleteConsumer("s", Consumer.from("g", "d")));
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(200);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            redis.add(StreamRecords.newRecord().in("t").withId("1-0").ofMap(fields));
        });
        later.start();
        say("XREADGROUP BLOCK", () -> redis.read(c, none.block(Duration.ofSeconds(9)), StreamOffset.create("t", ReadOffset.lastConsumed())));
        later.join();
        say("XGROUP DESTROY", () -> redis.destroyGroup("s", "g"));
        say("XINFO GROUPS of none", () -> redis.groups("none"));
        factory.destroy();
    }
}
