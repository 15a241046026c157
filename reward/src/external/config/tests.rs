use std::path::Path;

use super::*;

fn read(text: &str) -> ExternalConfig {
    toml::from_str(text).unwrap()
}

fn build(text: &str) -> Result<(), RewardError> {
    read(text).build(TaskTracker::new(), CancellationToken::new()).map(drop)
}

#[test]
fn short_forms_are_tables_with_their_defaults() {
    let short = read("python = \"m:f\"");
    assert_eq!(short, read("[python]\nfunction = \"m:f\""));
    assert_eq!(short.python.unwrap().interpreter, "python3");
    assert_eq!(read("command = [\"a\", \"b\"]"), read("[command]\nwords = [\"a\", \"b\"]"));
    assert_eq!(read("http = \"http://h/\""), read("[http]\nurl = \"http://h/\""));
    let json: ExternalConfig = serde_json::from_str(r#"{"python": "m:f", "http": null}"#).unwrap();
    assert_eq!(json, read("python = \"m:f\""));
}

#[test]
fn a_full_table_is_read_and_written() {
    let config = read(
        r#"
        concurrency = 3
        per_second = 2.5
        retries = 0
        attempt_s = 1.5
        deadline_s = 4
        cache_entries = 0
        on_failure = { score = -1.0 }
        [python]
        function = "/x/y.py:f"
        directory = "/x"
        path = ["/z"]
        env = { A = "b" }
        workers = 2
        jobs_per_worker = 100
        memory_mb = 4096
        start_s = 30
        "#,
    );
    assert_eq!(config.on_failure, OnFailure::Score(-1.0));
    assert_eq!(config.python.as_ref().unwrap().directory.as_deref(), Some(Path::new("/x")));
    assert_eq!(read(&toml::to_string(&config).unwrap()), config);
    assert_eq!(read("on_failure = \"stop\"").on_failure, OnFailure::Stop);
    assert_eq!(read("on_failure = \"fail_sample\"").on_failure, OnFailure::FailSample);
}

#[test]
fn unknown_keys_are_refused_by_name() {
    for (text, word) in [
        ("pythn = \"m:f\"", "pythn"),
        ("[python]\nfunction = \"m:f\"\nwrkers = 2", "wrkers"),
        ("[http]\nurl = \"http://h/\"\nbatch = 2", "batch"),
        ("[judge]\nurl = \"http://h/\"\nbatch = 2", "batch"),
        ("python = [\"m:f\"]", "\"module:function\" or a table"),
        ("command = \"a b\"", "a list of words or a table"),
        ("python = 7", "\"module:function\" or a table"),
        ("on_failure = \"explode\"", "explode"),
        ("code = { sandbx = \"auto\" }", "sandbx"),
        ("code = { sandbox = \"docker\" }", "docker"),
        ("[python]\nworkers = 2", "function"),
    ] {
        let error = toml::from_str::<ExternalConfig>(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

#[test]
fn invalid_values_are_named() {
    for (text, key) in [
        ("", "reward"),
        ("python = \"m:f\"\nhttp = \"http://h/\"", "reward"),
        ("python = \"no_function\"", "python.function"),
        ("python = \":f\"", "python.function"),
        ("python = { function = \"m:f\", workers = 0 }", "python.workers"),
        ("python = { function = \"m:f\", memory_mb = 0 }", "python.memory_mb"),
        ("python = { function = \"m:f\", start_s = 0 }", "python.start_s"),
        ("command = []", "command.words"),
        ("command = { words = [\"a\"], workers = 5000 }", "command.workers"),
        ("http = \"h:80\"", "http.url"),
        ("http = \"https://h/\"", "http.url"),
        ("http = { url = \"http://h/\", batch_max = 0 }", "http.batch_max"),
        ("http = { url = \"http://h/\", batch_max = 8, batch_wait_ms = 60001 }", "http.batch_wait_ms"),
        ("http = { url = \"http://h/\", api_key_env = \"NO_SUCH_VARIABLE\" }", "http.api_key_env"),
        ("code = { workers = 0 }", "code.workers"),
        ("code = { time_s = 0 }", "code.time_s"),
        ("code = { time_s = 20, time_all_s = 10 }", "code.time_s"),
        ("code = { time_all_s = 60 }\nattempt_s = 60", "code.time_all_s"),
        ("code = {}\ndeadline_s = 54", "code.time_all_s"),
        ("code = {}\nattempt_s = 54", "code.time_all_s"),
        ("code = { memory_mb = 0 }", "code.memory_mb"),
        ("code = { processes_max = 0 }", "code.processes_max"),
        ("code = { output_bytes_max = 0 }", "code.output_bytes_max"),
        ("code = { file_bytes_max = 0 }", "code.file_bytes_max"),
        ("code = { readable = [\"here\"] }", "code.readable"),
        ("http = \"http://h/\"\nconcurrency = 0", "concurrency"),
        ("http = \"http://h/\"\nper_second = 0", "per_second"),
        ("http = \"http://h/\"\nper_second = inf", "per_second"),
        ("http = \"http://h/\"\nretries = 1000", "retries"),
        ("http = \"http://h/\"\nattempt_s = -1", "attempt_s"),
        ("http = \"http://h/\"\ndeadline_s = nan", "deadline_s"),
        ("http = \"http://h/\"\nbackoff_initial_s = 0", "backoff_initial_s"),
        ("http = \"http://h/\"\nbackoff_max_s = 0.5", "backoff_initial_s"),
        ("http = \"http://h/\"\nbackoff_max_s = 601", "backoff_max_s"),
        ("http = \"http://h/\"\noutage_deadline_s = 0", "outage_deadline_s"),
        ("http = \"http://h/\"\non_failure = { score = nan }", "on_failure.score"),
        ("http = \"http://h/\"\non_failure = { score = 1e39 }", "on_failure.score"),
    ] {
        match build(text) {
            Err(RewardError::Misconfigured { key: named, .. }) => assert_eq!(named, key, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn attempts_share_the_deadline_unless_they_have_a_limit_of_their_own() {
    for (text, seconds) in [
        ("http = \"http://h/\"\ndeadline_s = 60", 20),
        ("http = \"http://h/\"\ndeadline_s = 60\nretries = 0", 60),
        ("http = \"http://h/\"\ndeadline_s = 60\nattempt_s = 60", 60),
        ("code = {}\ndeadline_s = 60", 60),
    ] {
        let guard = read(text).guard(1).unwrap();
        assert_eq!(guard.attempt, Duration::from_secs(seconds), "{text}");
    }
}

#[test]
fn a_runner_is_built_without_a_runtime() {
    for text in [
        "python = \"m:f\"",
        "command = [\"a\"]",
        "http = \"http://h/\"",
        "code = {}",
        "code = { sandbox = \"limits\", continuous = true }",
        "http = { url = \"http://h/\", batch_max = 8 }",
        "judge = { url = \"http://h/v1\", model = \"m\", template = \"{{ response }}\", pattern = \"(.)\", range = [0, 1] }",
    ] {
        assert_eq!(build(text), Ok(()), "{text}");
    }
}
