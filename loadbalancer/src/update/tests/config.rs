//! The configuration in the form that recipes use.

use super::*;

fn read(text: &str) -> Result<UpdateConfig, String> {
    let config: UpdateConfig = toml::from_str(text).map_err(|error| error.to_string())?;
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

#[test]
fn methods_are_words_or_tables() {
    let method = |text: &str| read(text).unwrap().method;
    assert_eq!(method(""), UpdateMethod::None);
    assert_eq!(method("method = 'none'"), UpdateMethod::None);
    assert_eq!(method("method = 'transfer'"), UpdateMethod::Transfer);
    assert_eq!(method("method = 'reload'"), UpdateMethod::Reload(Reload::default()));
    let own =
        method("method = { reload = { rpc = 'load_from', path_argument = 'path', kwargs = { n = 1 } } }");
    let UpdateMethod::Reload(Reload { rpc, path_argument, kwargs }) = own else { panic!("{own:?}") };
    assert_eq!((&*rpc, &*path_argument, kwargs["n"].as_i64()), ("load_from", "path", Some(1)));
    let argv = ["./push.sh", "-v"].map(str::to_owned).to_vec();
    assert_eq!(method("method = { command = ['./push.sh', '-v'] }"), UpdateMethod::Command(argv));
    let url = "http://trainer:9000/push";
    assert_eq!(method(&format!("method = {{ http = '{url}' }}")), UpdateMethod::Http(url.to_owned()));
}

#[test]
fn a_written_configuration_is_read_back() {
    let config = read(
        "method = { command = ['x'] }\npause = 'wait'\nreset_prefix_cache = true\nconcurrency = 4\n\
         interval = 0.5\n[deadlines]\nupdate = 30.5",
    )
    .unwrap();
    assert_eq!((config.pause, config.deadlines.update), (Some(PauseMode::Wait), 30.5));
    assert_eq!(config.deadlines.of(Phase::Pause), Duration::from_secs(60));
    let text = toml::to_string(&config).unwrap();
    assert_eq!(read(&text).unwrap(), config);
}

#[test]
fn a_value_out_of_range_is_refused_with_its_key() {
    for (text, words) in [
        ("method = 'magic'", "expected none, reload, transfer"),
        ("method = 'command'", "expected none, reload, transfer"),
        ("method = { magic = 1 }", "expected one of `reload`, `command`, `http`"),
        ("method = { reload = { path = 'x' } }", "unknown field `path`"),
        ("method = { command = ['x'], http = 'http://a' }", "expected one method, found a second: http"),
        ("method = 3", "expected none, reload, transfer"),
        ("method = { command = [] }", "method.command: expected a program and its arguments, found []"),
        ("method = { http = 'trainer:9000' }", "method.http: expected a URL like http://host:port/path"),
        ("method = { http = 'https://trainer' }", "method.http"),
        ("method = { reload = { rpc = '' } }", "method.reload.rpc"),
        ("pause = 'stop'", "expected one of `abort`, `keep`, `wait`"),
        ("deadlines = { load = 1 }", "unknown field `load`"),
        ("deadlines = { label = 0 }", "deadlines.label: expected seconds above 0 and at most 3600, found 0"),
        ("deadlines = { update = nan }", "deadlines.update"),
        ("deadlines = { pause = 1e9 }", "deadlines.pause"),
        ("interval = -1", "interval"),
        ("concurrency = 0", "concurrency: expected at least 1, found 0"),
        ("resume = true", "unknown field `resume`"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn an_announcement_needs_a_version_which_is_the_default_label() {
    let read = |text: &str| serde_json::from_str::<Announcement>(text);
    assert_eq!(read("{\"version\": 7}").unwrap(), Announcement::new(7));
    let whole = read(r#"{"version": 7, "label": "step-7", "path": "/w", "payload": {"a": 1}}"#).unwrap();
    assert_eq!((&*whole.label, whole.path.as_deref()), ("step-7", Some("/w")));
    assert_eq!(read(&serde_json::to_string(&whole).unwrap()).unwrap(), whole);
    assert!(read("{\"label\": \"7\"}").unwrap_err().to_string().contains("missing field `version`"));
    assert!(
        read("{\"version\": 7, \"where\": 1}").unwrap_err().to_string().contains("unknown field `where`")
    );
}
