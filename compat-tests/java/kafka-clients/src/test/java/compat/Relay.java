package compat;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** Commands for the relay in front of the second broker; see relay.py. */
final class Relay implements AutoCloseable {
    static final int PRODUCE = 0;
    static final int END_TXN = 26;

    private final Socket socket;
    private final BufferedReader answers;

    Relay() throws IOException {
        String[] address = System.getenv("RELAY_CONTROL").split(":");
        socket = new Socket(address[0], Integer.parseInt(address[1]));
        socket.setSoTimeout(60_000);
        answers = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
        ask("clear");
    }

    private String ask(String command) throws IOException {
        socket.getOutputStream().write((command + "\n").getBytes(StandardCharsets.UTF_8));
        String answer = answers.readLine();
        if (answer == null || !answer.startsWith("ok")) {
            throw new AssertionError("relay: " + command + " -> " + answer);
        }
        return answer.substring(2).trim();
    }

    /** Cuts the connection in place of the nth answer from now on to the given API; returns the rule's number. */
    String cutResponse(int api, int nth) throws IOException {
        return ask("arm cut response " + api + " " + nth);
    }

    /** Holds the next request or response of the given API; returns the rule's number. */
    String hold(String side, int api) throws IOException {
        return ask("arm hold " + side + " " + api + " 1");
    }

    /** Cuts the connection of a frame that is held. */
    void cut(String rule) throws IOException {
        ask("cut " + rule);
    }

    /** Waits until the rule has met its frame, so that a case cannot pass without its disturbance. */
    void fired(String rule) throws IOException {
        ask("wait " + rule + " 30");
    }

    @Override
    public void close() throws IOException {
        ask("clear");
        socket.close();
    }
}
