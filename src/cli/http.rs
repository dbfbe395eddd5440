//! One request to a node's admin page: HTTP/1.1 over a plain socket, closed afterwards. Enough for short JSON answers, and
//! no further dependency.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// How long a node may take to accept the connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take: a change of members waits for a quorum, and perhaps for a new leader.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// More than any answer has.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Asks, and returns the status with the JSON answered.
///
/// # Errors
/// If the node cannot be reached, or answers something else than JSON.
pub fn ask(address: &str, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Value)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such address");
    for target in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&target, CONNECT_WITHIN) {
            Ok(stream) => return exchange(stream, address, method, path, body),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn exchange(
    mut stream: TcpStream,
    host: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    parse(&answer)
}

fn parse(answer: &[u8]) -> io::Result<(u16, Value)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the answer {what}"));
    let text = std::str::from_utf8(answer).map_err(|_| bad("is not text"))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| bad("ends in its head"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| bad("has no status"))?;
    let value = serde_json::from_str(body).map_err(|_| bad(&format!("({status}) is not JSON: {body}")))?;
    Ok((status, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_its_json() {
        let answer = b"HTTP/1.1 409 Conflict\r\ncontent-length: 13\r\n\r\n{\"code\": 409}";
        let (status, value) = parse(answer).expect("well formed");
        assert_eq!((status, &value["code"]), (409, &409.into()));
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n<html>").is_err());
        assert!(parse(b"garbage").is_err());
    }
}
