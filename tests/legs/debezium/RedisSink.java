import io.debezium.embedded.async.ConvertingAsyncEngineBuilderFactory;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import redis.clients.jedis.Connection;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.StreamEntryID;

/**
 * Debezium's engine with a sink that writes what Debezium Server's Redis sink writes (facts.md, D1 to D3): java RedisSink
 * FILE. Properties in the file, beside the engine's own: redis.host, redis.port, redis.format.
 */
public class RedisSink implements DebeziumEngine.ChangeConsumer<ChangeEvent<String, String>> {
    private static final String NULL = "default";
    private final Connection connection;
    private final boolean isExtended;

    RedisSink(Properties properties) {
        int port = Integer.parseInt(properties.getProperty("redis.port"));
        connection = new Connection(properties.getProperty("redis.host"), port);
        isExtended = properties.getProperty("redis.format").equals("extended");
    }

    private Map<String, String> fields(ChangeEvent<String, String> event) {
        String key = event.key() == null ? NULL : event.key();
        String value = event.value() == null ? NULL : event.value();
        if (!isExtended) {
            return Map.of(key, value);
        }
        Map<String, String> fields = new LinkedHashMap<>(Map.of("key", key, "value", value));
        List<Header<String>> headers = event.headers();
        headers.forEach(header -> fields.put(header.getKey().toUpperCase(Locale.ROOT), header.getValue()));
        return fields;
    }

    @Override
    public void handleBatch(
            List<ChangeEvent<String, String>> events, RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        try (Pipeline pipeline = new Pipeline(connection, false)) {
            events.forEach(event -> pipeline.xadd(event.destination(), StreamEntryID.NEW_ENTRY, fields(event)));
            pipeline.syncAndReturnAll();
        }
        for (ChangeEvent<String, String> event : events) {
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
    }

    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(words[0]));
        String factory = ConvertingAsyncEngineBuilderFactory.class.getName();
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class, Json.class, Json.class, factory)
                        .using(properties)
                        .using((success, message, error) -> {
                            System.err.println("the engine has ended: " + message);
                            Runtime.getRuntime().halt(1);
                        })
                        .notifying(new RedisSink(properties))
                        .build();
        engine.run();
    }
}
