package compat.faults;

import compat.faults.History.Phase;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.EnumMap;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Clients that go on while the cluster is disturbed:
 *
 * <pre>Workload NAME BOOTSTRAP SEED ROLE...</pre>
 *
 * Roles: own, pipe, plain, source, member, reader:ISOLATION[:RACK], witness:GROUP[,GROUP]... A line on standard input
 * ends the next phase: the producers, the pipes, the consumers.
 */
public final class Workload {
    /** What the readers follow: topic and number of partitions. */
    static final Map<String, Integer> TOPICS = Map.of(
            "faults-plain", 4, "faults-source", 4, "faults-a", 2, "faults-b", 2, "faults-c", 2,
            "faults-out-a", 2, "faults-out-b", 2);

    private Workload() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments[0];
        String bootstrap = arguments[1];
        long seed = Long.parseLong(arguments[2]);
        long pace = Long.getLong("pace.ms", 10);
        Map<Phase, List<Thread>> threads = new EnumMap<>(Phase.class);
        for (Phase phase : Phase.values()) {
            threads.put(phase, new ArrayList<>());
        }
        for (int i = 3; i < arguments.length; i++) {
            String[] role = arguments[i].split(":");
            String who = name + "-" + role[0] + (i - 3);
            Phase phase = Phase.PRODUCERS;
            Runnable client;
            switch (role[0]) {
                case "own" -> client = new Own(who, pace, bootstrap, seed + i);
                case "plain" -> client = new Plain(who, "faults-plain", pace, bootstrap, seed + i);
                case "source" -> client = new Plain(who, "faults-source", 2 * pace, bootstrap, seed + i);
                case "pipe" -> {
                    client = new Pipe(who, bootstrap, seed + i);
                    phase = Phase.PIPES;
                }
                case "member" -> {
                    client = new Member(who, bootstrap);
                    phase = Phase.CONSUMERS;
                }
                case "reader" -> {
                    client = new Reader(who, role[1], role.length > 2 ? role[2] : "", bootstrap);
                    phase = Phase.CONSUMERS;
                }
                case "witness" -> {
                    client = new Witness(who, List.of(role[1].split(",")), bootstrap);
                    phase = Phase.CONSUMERS;
                }
                default -> throw new IllegalArgumentException("no such role: " + arguments[i]);
            }
            threads.get(phase).add(new Thread(client, who));
        }
        threads.values().forEach(all -> all.forEach(Thread::start));

        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (Phase phase : Phase.values()) {
            commands.readLine();
            phase.end();
            for (Thread thread : threads.get(phase)) {
                thread.join();
            }
            History.write("done", name, phase);
        }
    }
}
