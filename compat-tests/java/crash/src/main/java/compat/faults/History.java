package compat.faults;

import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * What a client asked and was told, one line an event on standard output, written before the client goes on. The first
 * word is the time (nanoseconds of the machine's monotonic clock, which all processes share); python/faults/history.py
 * says what each line means.
 */
final class History {
    private static final PrintStream OUT = System.out;

    private History() {}

    static synchronized void write(Object... words) {
        StringBuilder line = new StringBuilder().append(System.nanoTime());
        for (Object word : words) {
            line.append('\t').append(word);
        }
        OUT.println(line);
        OUT.flush();
    }

    /** Goes into the history by its class, and to standard error for people. */
    static void note(String who, Throwable error) {
        write("error", who, error.getClass().getSimpleName());
        System.err.println(System.nanoTime() + " " + who + ": " + error);
    }

    /** How the phases of a run end; in the order in which they do. */
    enum Phase {
        PRODUCERS, PIPES, CONSUMERS;

        private final CountDownLatch over = new CountDownLatch(1);

        boolean over() {
            return over.getCount() == 0;
        }

        boolean over(long waitMs) throws InterruptedException {
            return over.await(waitMs, TimeUnit.MILLISECONDS);
        }

        void end() {
            over.countDown();
        }
    }

    static Map<String, Object> common(String bootstrap) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 200);
        config.put("retry.backoff.ms", 20);
        config.put("retry.backoff.max.ms", 200);
        // A silent node must not cost a client half a minute: what is measured is the cluster.
        config.put("request.timeout.ms", 5_000);
        config.put("socket.connection.setup.timeout.ms", 1_000);
        config.put("metadata.max.age.ms", 5_000);
        return config;
    }
}
