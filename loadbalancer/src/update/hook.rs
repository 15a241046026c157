//! The user's hook, a program or a URL that updates all servers in one call.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::{Announcement, UpdateError};
use crate::ServerRef;
use crate::control::http::{error_text, reason_of};

/// Number of bytes that are kept from the end of a failed program's standard error.
const STDERR_BYTES_MAX: usize = 500;
/// Longest time for which the rest of the standard error is read after the program has ended. A process that
/// the program left behind may keep the pipe open forever.
const STDERR_WAIT: Duration = Duration::from_millis(100);

/// An HTTP client without a deadline, since the phase has one.
pub(super) fn client() -> Result<Client, UpdateError> {
    Client::builder().no_proxy().build().map_err(|error| UpdateError::Client { reason: reason_of(&error) })
}

/// The servers' URLs. A server without a URL is listed by its name.
fn addresses(servers: &[ServerRef]) -> Vec<&str> {
    servers.iter().map(|server| server.url.as_deref().unwrap_or(&server.name)).collect()
}

/// Posts an announcement to the user's URL. Cancel-safe: dropping the future drops the request.
pub(super) async fn post(
    client: Client,
    url: String,
    announcement: &Announcement,
    servers: &[ServerRef],
) -> Result<(), String> {
    let Announcement { version, label, path, payload } = announcement;
    let body = json!({
        "version": version,
        "label": label,
        "path": path,
        "payload": payload,
        "servers": addresses(servers),
    });
    let response = client.post(&url).json(&body).send().await.map_err(|error| reason_of(&error))?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    Err(format!("{url} answered with status {status}{}", error_text(response).await))
}

/// When this value is dropped, it kills a program and all processes that the program has started. `leader` is
/// cleared once the program has been waited for, because another process may then get the same process id.
struct Group {
    leader: Option<Pid>,
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // The processes may have ended by themselves.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs the user's program. Cancel-safe: dropping the future kills the program and all processes that it has
/// started.
pub(super) async fn run(
    argv: &[String],
    announcement: &Announcement,
    servers: &[ServerRef],
) -> Result<(), String> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err("expected a program, found an empty command".to_owned());
    };
    let mut command = Command::new(program);
    command.args(arguments).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.env("ROLLDOCK_VERSION", announcement.version.to_string());
    command.env("ROLLDOCK_SERVERS", addresses(servers).join(" "));
    match &announcement.path {
        Some(path) => command.env("ROLLDOCK_PATH", path),
        None => command.env_remove("ROLLDOCK_PATH"),
    };
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group { leader };
    let (ended, message) = watch(&mut child, &mut group).await;
    let status = ended.map_err(|error| format!("{program}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{program} ended with {status}{message}"))
}

async fn watch(child: &mut Child, group: &mut Group) -> (std::io::Result<ExitStatus>, String) {
    let mut last = Vec::new();
    let Some(stderr) = child.stderr.take() else { return (child.wait().await, String::new()) };
    let mut listening = Box::pin(listen(stderr, &mut last));
    let ended = tokio::select! {
        biased;
        ended = child.wait() => {
            group.leader = None;
            // Waits for the rest of the standard error, which ends with the last process that holds the pipe.
            let _ = tokio::time::timeout(STDERR_WAIT, &mut listening).await;
            ended
        }
        () = &mut listening => {
            let ended = child.wait().await;
            group.leader = None;
            ended
        }
    };
    drop(listening);
    let message = match String::from_utf8_lossy(&last).trim() {
        "" => String::new(),
        text => format!(": {text}"),
    };
    (ended, message)
}

/// Reads the standard error, and keeps its last bytes.
async fn listen(mut stderr: impl AsyncRead + Unpin, last: &mut Vec<u8>) {
    let mut piece = [0_u8; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut piece).await {
        last.extend_from_slice(&piece[..length]);
        let surplus = last.len().saturating_sub(STDERR_BYTES_MAX);
        last.drain(..surplus);
    }
}
