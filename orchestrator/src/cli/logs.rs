//! The outputs of logs: standard error, in colours or as JSON, and the log of a run, as plain text.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use rolldock_cli::{LogFormat, UsageError};
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

use crate::report::{Progress, RUN_LOG_ONLY, RunLog};

/// The environment variable with the filter of logs.
const FILTER: &str = "ROLLDOCK_LOG";

/// Installs the subscriber of this process. `is_run` is whether the command writes the log of a run.
///
/// # Errors
/// Returns an error if the filter in `ROLLDOCK_LOG` is wrong.
pub(super) fn install(format: LogFormat, progress: &Progress, is_run: bool) -> Result<(), UsageError> {
    let filter = filter(std::env::var_os(FILTER))?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = progress.log_writer();
    let log = is_run.then(|| progress.run_log());
    // This fails only in a test that runs two commands in one process. The first subscriber is then kept.
    let _ = subscriber(filter, format, colours, move || writer.clone(), log).try_init();
    Ok(())
}

/// Reads the filter: a level for all logs, and levels for single targets. A target without a level is an error,
/// unless it begins with `rolldock`: a misspelt level would otherwise be read as a target and silence all logs.
fn filter(text: Option<OsString>) -> Result<Targets, UsageError> {
    let text = text.filter(|text| !text.is_empty()).unwrap_or_else(|| "info".into());
    let wrong = |directive: &str| {
        let levels = "off, error, warn, info, debug, trace";
        UsageError(format!(
            "{FILTER}={}: expected one of {levels}, or TARGET=LEVEL, in a list with commas; found {directive}",
            text.display()
        ))
    };
    let words = text.to_str().ok_or_else(|| wrong("bytes that are not UTF-8"))?;
    let mut filter = Targets::new();
    for directive in words.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        filter = match (directive.split_once('='), directive.parse::<LevelFilter>()) {
            (Some((target, level)), _) if is_target(target) && !level.is_empty() => {
                filter.with_target(target, level.parse::<LevelFilter>().map_err(|_| wrong(directive))?)
            }
            (None, Ok(level)) => filter.with_default(level),
            (None, Err(_)) if directive.starts_with("rolldock") && is_target(directive) => {
                filter.with_target(directive, LevelFilter::TRACE)
            }
            _ => return Err(wrong(directive)),
        };
    }
    Ok(filter)
}

/// Whether `text` is the path of a module.
fn is_target(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    text.split("::").all(is_word)
}

fn subscriber<W: Write + 'static>(
    filter: Targets,
    format: LogFormat,
    colours: bool,
    terminal: impl Fn() -> W + Send + Sync + 'static,
    log: Option<RunLog>,
) -> impl Subscriber + Send + Sync {
    let terminal = match format {
        LogFormat::Text => layer().with_target(false).with_ansi(colours).with_writer(terminal).boxed(),
        LogFormat::Json => layer().with_target(false).json().with_writer(terminal).boxed(),
    };
    let log = log.map(|log| layer().with_target(false).with_ansi(false).with_writer(move || log.clone()));
    registry()
        .with(filter)
        .with(terminal.with_filter(filter_fn(|event| event.target() != RUN_LOG_ONLY)))
        .with(log)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tempfile::TempDir;
    use tracing::Level;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_invalid_log_filter_is_refused() {
        for sound in
            ["debug", "warn,rolldock_loadbalancer=info", "rolldock_queue", "off", "", "info,hyper=trace"]
        {
            assert!(filter(Some(sound.into())).is_ok(), "{sound}");
        }
        let filtered =
            filter(Some("warn, rolldock_queue::journal=debug,rolldock_loadbalancer,".into())).unwrap();
        for (target, level, is_shown) in [
            ("hyper", Level::WARN, true),
            ("hyper", Level::INFO, false),
            ("rolldock_queue", Level::INFO, false),
            ("rolldock_queue::journal::group", Level::DEBUG, true),
            ("rolldock_queue::journal::group", Level::TRACE, false),
            ("rolldock_loadbalancer", Level::TRACE, true),
        ] {
            assert_eq!(filtered.would_enable(target, &level), is_shown, "{target} {level}");
        }
        let unset = filter(None).unwrap();
        assert!(
            unset.would_enable("rolldock", &Level::INFO) && !unset.would_enable("rolldock", &Level::DEBUG)
        );
        for (wrong, words) in [
            (
                "infoo",
                "ROLLDOCK_LOG=infoo: expected one of off, error, warn, info, debug, trace, or TARGET=LEVEL",
            ),
            ("warn,rolldock=loud", "in a list with commas; found rolldock=loud"),
            ("info;debug", "found info;debug"),
            ("rolldock=", "found rolldock="),
            ("=info", "found =info"),
            ("rolldock[run]=info", "found rolldock[run]=info"),
        ] {
            let error = filter(Some(wrong.into())).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_log_of_a_run_is_plain_text_from_the_first_line() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let dir = TempDir::new().unwrap();
            let file = dir.path().join("run.log");
            std::fs::write(&file, "an earlier life\n").unwrap();
            let (progress, screen) = (Progress::new(false), Screen::default());
            let (drawn, filter) = (screen.clone(), Targets::new().with_default(LevelFilter::INFO));
            let log = Some(progress.run_log());
            let subscriber = subscriber(filter, format, true, move || drawn.clone(), log);
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(server = "a", "before there is a directory");
                progress.keep_log(&file).unwrap();
                tracing::warn!(words = "\u{1b}[31mred", error = %"\u{1b}[2J", "an answer: \u{1b}[1mbold");
                tracing::error!(target: RUN_LOG_ONLY, "the last words");
                tracing::debug!("is filtered");
            });
            let log = std::fs::read_to_string(&file).unwrap();
            let screen = String::from_utf8(screen.0.lock().clone()).unwrap();
            assert!(log.starts_with("an earlier life\n"), "{log}");
            let expected =
                ["INFO before there is a directory server=\"a\"", "WARN an answer: ", "ERROR the last words"];
            let lines: Vec<&str> = log.lines().skip(1).collect();
            assert_eq!(lines.len(), expected.len(), "{log}");
            for (line, words) in lines.iter().zip(expected) {
                assert!(line.contains(words), "{words} in {log}");
            }
            assert!(!log.contains('\u{1b}'), "{log:?}");
            assert!(screen.contains("before there is a directory"), "{screen}");
            assert!(!screen.contains("last words"), "{screen}");
            assert_eq!(screen.contains("\u{1b}["), format == LogFormat::Text, "colours: {screen:?}");
        }
    }
}
