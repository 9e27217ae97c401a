import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Flink SQL in one process: each line of the input is a statement, and gets a line of output when it has ended. Of an
 * INSERT, which is a job, the line comes when the job has ended; with `--` before it, when the job has started.
 */
public class FlinkSql {
    public static void main(String[] settings) throws Exception {
        Configuration configuration = new Configuration();
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            configuration.setString(pair[0], pair[1]);
        }
        TableEnvironment flink =
            TableEnvironment.create(EnvironmentSettings.newInstance().withConfiguration(configuration).build());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            TableResult result = flink.executeSql(line.startsWith("--") ? line.substring(2) : line);
            if (result.getJobClient().isPresent() && !line.startsWith("--")) {
                result.await();
            }
            System.out.println("answer null");
        }
        System.exit(0);
    }
}
