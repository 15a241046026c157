//! `rolldock fleet`

use std::time::Duration;

use reqwest::{Client, Method, Response};
use rolldock_loadbalancer::admin::Drained;
use rolldock_loadbalancer::membership::NewMember;
use rolldock_process::{Endings, new_table, say};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{FleetArgs, FleetCommand};
use crate::usage::{UsageError, sendable};

/// Maximum wait of one call for a change of the watched fleet.
const WATCH: Duration = Duration::from_secs(20);
/// The pause between two calls. It is needed because the table changes with every request.
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// The maximum time of a call, in addition to the wait that the call requests.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A client of the admin address of a run or a proxy.
struct Admin {
    client: Client,
    base: String,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: Said,
}

#[derive(Deserialize)]
struct Said {
    message: String,
}

impl Admin {
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&NewMember>,
        wait: Duration,
    ) -> anyhow::Result<Response> {
        let url = format!("{}/v1/fleet{path}", self.base);
        let mut request = self.client.request(method, url).timeout(wait + ANSWER_MAX);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| self.unanswered(error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.text().await.unwrap_or_default();
        match serde_json::from_str::<Refusal>(&text) {
            Ok(refusal) => anyhow::bail!("{}", refusal.error.message),
            Err(_) => {
                anyhow::bail!("{} answers {status}: is it the admin address of a run or a proxy?", self.base)
            }
        }
    }

    /// The error of a call without a sound answer. It contains only the root cause, because the library's
    /// messages repeat the URL.
    fn unanswered(&self, error: reqwest::Error) -> anyhow::Error {
        let is_foreign = error.is_decode();
        let error = anyhow::Error::from(error);
        let cause = error.root_cause();
        if is_foreign {
            let base = &self.base;
            return anyhow::anyhow!(
                "{base} answers something else: is it the admin address of a run or a proxy? ({cause})"
            );
        }
        anyhow::anyhow!("expected an answer at {}: {cause}", self.base)
    }

    /// Makes a call and reads the answer.
    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&NewMember>,
        wait: Duration,
    ) -> anyhow::Result<T> {
        let answer = self.call(method, path, body, wait).await?;
        answer.json().await.map_err(|error| self.unanswered(error))
    }

    async fn fleet(&self, wait: Duration) -> anyhow::Result<Value> {
        let path = format!("?wait_ms={}", wait.as_millis());
        self.read(Method::GET, &path, None, wait).await
    }
}

/// `rolldock fleet`: looks at the fleet of a run or a proxy, and changes it.
pub async fn run(args: FleetArgs) -> anyhow::Result<()> {
    let FleetArgs { admin, token, command } = args;
    if url::Url::parse(&admin).is_err() {
        let words = format!("--admin: expected a URL like http://127.0.0.1:7500, found {admin}");
        return Err(UsageError(words).into());
    }
    sendable("--token", token.as_deref())?;
    let base = admin.trim_end_matches('/').to_owned();
    let admin = Admin { client: Client::builder().no_proxy().build()?, base, token };
    let of = |name: &str, what: &str| format!("/{}{what}", in_path(name));
    match command {
        FleetCommand::Add { url, name, capacity } => {
            let member = NewMember { url, name, capacity };
            // Servers are probed before they join.
            let joined: Value = admin.read(Method::POST, "", Some(&member), ANSWER_MAX).await?;
            say(&format!("{} joins with {} permits", text(&joined["name"]), joined["capacity"]));
        }
        FleetCommand::Drain { name, wait } => {
            let wait = Duration::from_secs_f64(wait);
            let path = of(&name, &format!("/drain?wait_ms={}", wait.as_millis()));
            let Drained { in_use } = admin.read(Method::POST, &path, None, wait).await?;
            anyhow::ensure!(in_use == 0, "{name} still has {in_use} samples; it stays draining");
            say(&format!("{name} is drained"));
        }
        FleetCommand::Remove { name } => {
            admin.call(Method::DELETE, &of(&name, ""), None, Duration::ZERO).await?;
            say(&format!("{name} has left"));
        }
        FleetCommand::Pause { name } => {
            admin.call(Method::POST, &of(&name, "/pause"), None, Duration::ZERO).await?;
            say(&format!("{name} is paused"));
        }
        FleetCommand::Resume { name } => {
            admin.call(Method::POST, &of(&name, "/resume"), None, Duration::ZERO).await?;
            say(&format!("{name} gets requests again"));
        }
        FleetCommand::List { json: true } => say(&admin.fleet(Duration::ZERO).await?.to_string()),
        FleetCommand::List { json: false } => say(&table(&admin.fleet(Duration::ZERO).await?)),
        FleetCommand::Watch => watch(&admin).await?,
    }
    Ok(())
}

/// Prints the fleet whenever its table changes, until an interrupt.
async fn watch(admin: &Admin) -> anyhow::Result<()> {
    let watching = async {
        let mut last = String::new();
        loop {
            let now = table(&admin.fleet(if last.is_empty() { Duration::ZERO } else { WATCH }).await?);
            if now != last {
                say(&now);
                last = now;
            }
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    };
    let mut endings = Endings::listen()?;
    tokio::select! {
        biased;
        _ = endings.asked() => Ok(()),
        ended = watching => ended,
    }
}

/// A name encoded as one part of a path. The name of a server behind a gateway contains slashes.
fn in_path(name: &str) -> String {
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn table(fleet: &Value) -> String {
    let mut table =
        new_table(["server", "state", "permits", "answers", "faults", "busy", "tokens/s", "epoch"]);
    let mut reasons = Vec::new();
    for server in fleet["servers"].as_array().into_iter().flatten() {
        let (name, state, outcomes) = (text(&server["name"]), text(&server["state"]), &server["outcomes"]);
        if let Some(reason) = server["reason"].as_str() {
            reasons.push(format!("{name} is {state}: {reason}\n"));
        }
        let speed =
            server["tokens_per_second"].as_f64().map_or("-".to_owned(), |speed| format!("{speed:.1}"));
        let permits = format!("{}/{}", server["in_use"], server["capacity"]);
        let counts = [&outcomes["success"], &outcomes["fault"], &outcomes["backpressure"]].map(text);
        let row = [name, state, permits].into_iter().chain(counts).chain([speed, text(&server["epoch"])]);
        table.add_row(row);
    }
    format!("{table}\n{}waiting for a permit: {}", reasons.concat(), fleet["waiting"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::table;

    #[test]
    fn the_fleet_fits_eighty_columns() {
        let server = |name: &str| {
            json!({
                "name": name, "state": "dead", "reason": "health: no connection within connect=5 s",
                "in_use": 256, "capacity": 256, "epoch": 12, "tokens_per_second": 123.4,
                "outcomes": { "success": 1_000_000, "fault": 1_000, "backpressure": 1_000 },
            })
        };
        let fleet =
            json!({ "servers": [server("10.200.100.100:8000"), server("10.0.0.2:8000")], "waiting": 3 });
        let table = table(&fleet);
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{table}");
        }
        for words in ["10.200.100.100:8000 dead", " 256/256 ", " 1000000 ", " 123.4 "] {
            assert!(table.contains(words), "{words} in\n{table}");
        }
        assert!(table.contains("\n10.0.0.2:8000 is dead: health: no connection within"), "{table}");
    }
}
