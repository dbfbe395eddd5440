package compat.crash;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/**
 * Clients that go on while the broker is killed and restarted:
 *
 * <pre>Workload NAME BOOTSTRAP SEED</pre>
 *
 * Two transactional producers, one plain idempotent producer, and one member of a group that all workloads share.
 * A line on standard input ends the producers, a second one the group member.
 */
final class Workload {
    /** Opened when the producers, or everybody, should come to an end. */
    static final CountDownLatch PRODUCERS_STOP = new CountDownLatch(1);
    static final CountDownLatch ALL_STOP = new CountDownLatch(1);

    private Workload() {}

    static Map<String, Object> common(String bootstrap) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 200);
        config.put("retry.backoff.ms", 20);
        return config;
    }

    public static void main(String[] arguments) throws Exception {
        String name = arguments[0];
        String bootstrap = arguments[1];
        long seed = Long.parseLong(arguments[2]);
        List<Thread> producers = new ArrayList<>();
        producers.add(new Thread(new Transactions(name + "-t0", bootstrap, seed)));
        producers.add(new Thread(new Transactions(name + "-t1", bootstrap, seed + 1)));
        producers.add(new Thread(new Plain(name + "-p0", bootstrap, seed + 2)));
        Thread member = new Thread(new Member(name + "-m0", bootstrap));
        producers.forEach(Thread::start);
        member.start();

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        commands.readLine();
        PRODUCERS_STOP.countDown();
        for (Thread producer : producers) {
            producer.join();
        }
        Journal.write("done", name);
        commands.readLine();
        ALL_STOP.countDown();
        member.join();
    }
}
