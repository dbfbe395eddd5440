//! The first error after which the node must not go on: a failed fsync, a lost log, a failed segment writer.
//! Whoever meets it reports it here; the server awaits it and exits.

use tokio::sync::watch;

/// Where fatal errors are reported; clones share it.
#[derive(Clone, Debug)]
pub struct Fatal {
    first: watch::Sender<Option<String>>,
}

impl Default for Fatal {
    fn default() -> Self {
        Self { first: watch::Sender::new(None) }
    }
}

impl Fatal {
    /// Reports an error; only the first is kept, it is the cause of those that follow.
    pub fn report(&self, error: String) {
        self.first.send_if_modified(|first| {
            if first.is_some() {
                return false;
            }
            tracing::error!(%error, "this node must stop");
            *first = Some(error);
            true
        });
    }

    /// The first error reported, if any.
    pub fn error(&self) -> Option<String> {
        self.first.borrow().clone()
    }

    /// Waits for one.
    pub async fn reported(&self) -> String {
        let mut first = self.first.subscribe();
        match first.wait_for(Option::is_some).await.map(|error| error.clone()) {
            Ok(Some(error)) => error,
            // We hold a sender ourselves, and the condition asked for Some.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

/// Held while shared state is between two consistent states: a panic meanwhile ends the process at once, because nobody
/// may decide on what is left (the lock does not poison). A restart recovers; a torn leader would acknowledge nonsense.
pub struct WholeOrDead;

impl Drop for WholeOrDead {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a panic tore the leader's state; the process ends to keep what is acknowledged safe");
            std::process::abort();
        }
    }
}
