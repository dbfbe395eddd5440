//! `host:port`, optionally with a listener name in front as Redpanda writes it: `internal://host:port`.

/// Where to listen or to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host name or IP address; IPv6 without brackets.
    pub host: String,
    /// Port; 0 lets the system choose (tests).
    pub port: u16,
}

impl Address {
    /// Parses one address.
    ///
    /// # Errors
    /// What would do, in words.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "one host:port (a name:// in front is accepted)";
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
        if bare.contains(',') {
            return Err("one host:port; several listeners are not served yet");
        }
        let (host, port) = bare.rsplit_once(':').ok_or(EXPECTED)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(EXPECTED);
        }
        Ok(Self { host: host.into(), port: port.parse().map_err(|_| EXPECTED)? })
    }

    /// Whether it means «every interface»: good to listen on, useless to connect to.
    pub fn is_unspecified(&self) -> bool {
        self.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_front_and_ipv6_brackets_are_understood() {
        for (text, host, port) in [
            ("127.0.0.1:9092", "127.0.0.1", 9092),
            ("internal://broker:19092", "broker", 19092),
            ("[::1]:9092", "::1", 9092),
        ] {
            let address = Address::parse(text).expect(text);
            assert_eq!((address.host.as_str(), address.port), (host, port));
        }
        assert_eq!(Address::parse("[::1]:1").expect("valid").to_string(), "[::1]:1");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "host", ":9092", "host:port", "host:70000", "a:1,b:2"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
