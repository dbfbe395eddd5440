package compat.crash;

import java.io.PrintStream;

/**
 * What a client was told, one line an event on standard output, written before the client goes on. The driver reads
 * it; python/crash/journal.py says what each line means.
 */
final class Journal {
    private static final PrintStream OUT = System.out;

    private Journal() {}

    static synchronized void write(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.isEmpty() ? "" : "\t").append(word);
        }
        OUT.println(line);
        OUT.flush();
    }

    /** For people: goes to standard error. */
    static void note(String who, Throwable error) {
        System.err.println(who + ": " + error);
    }
}
