//! Mistakes on the command line.

use std::time::Duration;

use rolldock_loadbalancer::control::is_sendable;

/// A mistake on the command line that clap cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The largest time that an option accepts, about four months.
pub(crate) const SECONDS_MAX: f64 = 1e7;

/// Parses the seconds of `option`, which must be above 0.
pub fn seconds(option: &str, seconds: f64) -> Result<Duration, UsageError> {
    let duration = Duration::try_from_secs_f64(seconds).ok();
    let is_sound = |duration: &Duration| !duration.is_zero() && duration.as_secs_f64() <= SECONDS_MAX;
    duration.filter(is_sound).ok_or_else(|| {
        UsageError(format!(
            "{option}: expected seconds, more than 0 and at most {SECONDS_MAX}, found {seconds}"
        ))
    })
}

/// Checks that the secret of `option` can be sent, or that clients can send it. The error does not show the secret.
pub fn sendable<'a>(option: &str, secret: Option<&'a str>) -> Result<Option<&'a str>, UsageError> {
    match secret {
        Some(unfit) if !is_sendable(unfit) => {
            let expected = "expected a secret that an HTTP header can hold";
            Err(UsageError(format!(
                "{option}: {expected}, found one with a line break or another control character"
            )))
        }
        fit => Ok(fit),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::sendable;
    use crate::{Cli, Command, gateway, proxy, queue};

    #[test]
    fn a_secret_that_cannot_be_sent_is_refused_and_not_shown() {
        assert_eq!(sendable("--api-key", Some("k-1 2")).unwrap(), Some("k-1 2"));
        assert_eq!(sendable("--api-key", None).unwrap(), None);
        for secret in ["hush\n", "hush\r\nx-other: 1", "hush\0"] {
            let error = sendable("--api-key", Some(secret)).unwrap_err().to_string();
            assert!(
                error.starts_with("--api-key: expected a secret that an HTTP header can hold"),
                "{error}"
            );
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_server_does_not_start_with_a_secret_that_no_client_can_send() {
        let of_gateway = "gateway --endpoint http://127.0.0.1:1 --out never-made --tokenizer builtin";
        for (command, option) in [
            ("queue serve --dir never-made", "--token"),
            ("queue unit --controller http://127.0.0.1:1 --dir never-made", "--token"),
            (of_gateway, "--token"),
            (of_gateway, "--queue-token"),
            ("proxy --endpoint http://127.0.0.1:1", "--admin-token"),
        ] {
            let line = ["rolldock"].into_iter().chain(command.split(' ')).chain([option, "hush\n"]);
            // The check is the first step, so no runtime is needed.
            let ended = match Cli::of_line(line).unwrap().command {
                Command::Queue(args) => queue::run(args).now_or_never(),
                Command::Gateway(args) => gateway::run(*args).now_or_never(),
                Command::Proxy(args) => proxy::run(args).now_or_never(),
                other => panic!("another command: {other:?}"),
            };
            let error = ended.unwrap().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{option}: expected a secret")), "{command}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
