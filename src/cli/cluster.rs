//! `katomic cluster`: how the nodes stand, adding and removing them, moving leadership. Talks to the admin page of any node,
//! which passes on to the leader what only it can do.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::http;

/// How often an added node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For so long a missing leader is waited for while an added node is looked at.
const LOOKS_WITHOUT_LEADER_MAX: usize = 60;

/// Where to ask, and what.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// The admin address of any node.
    #[arg(long, global = true, env = "KATOMIC_ADMIN_ADDR", default_value = "127.0.0.1:9644")]
    pub admin_addr: String,
    /// What to do.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows the leader and the members, and how far each is.
    Status {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Adds the node that listens for peers at this address; waits until it votes.
    Add {
        /// Its address for peers, host:port.
        address: String,
        /// The id that it must have.
        #[arg(long)]
        node_id: Option<u64>,
        /// Returns as soon as it follows; it votes later.
        #[arg(long)]
        no_wait: bool,
    },
    /// Removes a node; the leader itself first gives leadership away.
    Remove {
        /// Its id.
        id: u64,
    },
    /// Moves leadership, to whoever follows most closely or to one node.
    Transfer {
        /// Who shall lead.
        #[arg(long)]
        to: Option<u64>,
    },
}

/// Does it; says on standard error what went wrong.
pub fn run(args: &ClusterArgs) -> ExitCode {
    let admin = args.admin_addr.as_str();
    let result = match &args.command {
        ClusterCommand::Status { json } => status(admin, *json),
        ClusterCommand::Add { address, node_id, no_wait } => add(admin, address, *node_id, !no_wait),
        ClusterCommand::Remove { id } => ask(admin, "DELETE", &format!("/v1/cluster/nodes/{id}"), None)
            .map(|_| format!("node {id} is not a member\n")),
        ClusterCommand::Transfer { to } => {
            ask(admin, "POST", "/v1/cluster/transfer_leadership", Some(&json!({ "to": to })))
                .map(|answer| format!("node {} leads\n", answer["node_id"]))
        }
    };
    match result {
        Ok(said) => say(&mut std::io::stdout(), &said),
        Err(error) => {
            say(&mut std::io::stderr(), &format!("katomic: {error}\n"));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Nobody is left to be told where it cannot be written.
fn say(to: &mut dyn Write, text: &str) {
    let _ = to.write_all(text.as_bytes());
}

fn ask(admin: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let (status, answer) =
        http::ask(admin, method, path, body).map_err(|error| format!("the node at {admin} (admin): {error}"))?;
    if (200..300).contains(&status) {
        return Ok(answer);
    }
    Err(answer["message"].as_str().map_or_else(|| format!("{status} {answer}"), str::to_owned))
}

fn status(admin: &str, json: bool) -> Result<String, String> {
    let overview = ask(admin, "GET", "/v1/cluster/status", None)?;
    if json {
        serde_json::to_string_pretty(&overview).map(|text| text + "\n").map_err(|error| error.to_string())
    } else {
        Ok(table(&overview))
    }
}

fn add(admin: &str, address: &str, node_id: Option<u64>, wait: bool) -> Result<String, String> {
    let added = ask(admin, "POST", "/v1/cluster/nodes", Some(&json!({ "address": address, "node_id": node_id })))?;
    let id = added["node_id"].clone();
    if !wait {
        return Ok(format!("node {id} follows, and votes when it has caught up\n"));
    }
    let mut without_leader = 0;
    let mut said = String::new();
    loop {
        let overview = ask(admin, "GET", "/v1/cluster/status", None)?;
        let members = overview["members"].as_array().cloned().unwrap_or_default();
        match members.iter().find(|member| member["node_id"] == id) {
            Some(member) if member["voter"] == true => return Ok(format!("node {id} votes\n")),
            Some(member) => {
                let now = format!("node {id} catches up: {}\n", how_far(member));
                if now != said {
                    say(&mut std::io::stderr(), &now);
                    said = now;
                }
            }
            None if without_leader < LOOKS_WITHOUT_LEADER_MAX => without_leader += 1,
            None => return Err(format!("node {id} is not a member")),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn how_far(member: &Value) -> String {
    match (member["pulling"].as_array(), member["lag"].as_u64()) {
        (Some(pulling), _) => match (pulling[0].as_u64(), pulling[1].as_u64()) {
            (Some(done), Some(total)) if total > 0 => format!("checkpoint {} of {} MiB", done >> 20, total >> 20),
            _ => "checkpoint".to_owned(),
        },
        (None, Some(lag)) => format!("{lag} entries behind"),
        (None, None) => String::new(),
    }
}

fn table(overview: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut out = format!(
        "cluster {}, leader {}, term {}, last {}, committed {}, checkpoint {}{}\n",
        text(&overview["cluster_id"]),
        text(&overview["leader"]),
        text(&overview["term"]),
        text(&overview["last"]),
        text(&overview["committed"]),
        text(&overview["checkpoint"]),
        if overview["changing"] == true { ", members are changing" } else { "" },
    );
    let mut rows = vec![["NODE", "ROLE", "FOLLOWS", "MATCHED", "BEHIND", "RPC", "KAFKA", "RACK"].map(str::to_owned)];
    for member in overview["members"].as_array().into_iter().flatten() {
        let role = match (member["node_id"] == overview["leader"], member["voter"] == true) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "learner",
        };
        let follows = if member["in_sync"] == true { "closely" } else { "behind" };
        rows.push([
            text(&member["node_id"]),
            role.to_owned(),
            follows.to_owned(),
            text(&member["matched"]),
            how_far(member),
            text(&member["rpc"]),
            text(&member["kafka"]),
            text(&member["rack"]),
        ]);
    }
    let widths: Vec<usize> =
        (0..8).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_roles_and_how_far_each_node_is() {
        let member = |id: u64, voter: bool, pulling: Value, lag: u64| {
            json!({ "node_id": id, "voter": voter, "in_sync": voter, "matched": 90, "lag": lag, "pulling": pulling,
                    "rpc": "a:1", "kafka": "b:2", "rack": null })
        };
        let overview = json!({ "cluster_id": "x", "leader": 1, "term": 3, "last": 100, "committed": 99, "checkpoint": null,
            "changing": false,
            "members": [member(1, true, Value::Null, 0), member(2, true, Value::Null, 10), member(3, false, json!([1 << 20, 5 << 20]), 100)] });
        let shown = table(&overview);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "cluster x, leader 1, term 3, last 100, committed 99, checkpoint -");
        assert!(lines[2].starts_with("1     leader   closely  90"), "{shown}");
        assert!(lines[3].contains("voter") && lines[3].contains("10 entries behind"), "{shown}");
        assert!(lines[4].contains("learner") && lines[4].contains("checkpoint 1 of 5 MiB"), "{shown}");
    }
}
