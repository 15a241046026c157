use super::EnvironmentConfig;

fn read(text: &str) -> Result<EnvironmentConfig, String> {
    let config: EnvironmentConfig = toml::from_str(text).map_err(|error| error.to_string())?;
    config.check().map_err(|error| error.to_string())?;
    assert_eq!(toml::from_str::<EnvironmentConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    Ok(config)
}

#[test]
fn an_environment_is_named_in_one_of_three_ways() {
    assert_eq!(read("name = 'calculator'").unwrap().limits(512).turn_tokens_max, 512);
    let limits = read("name = 'number_game'\nturns = 3\nturn_tokens = 64").unwrap().limits(512);
    assert_eq!((limits.turns_max, limits.turn_tokens_max, limits.sampled_tokens_max), (3, 64, 512));
    assert_eq!(read("python = 'games:Chess'").unwrap().python.unwrap().class, "games:Chess");
    let table = read("python = { class = 'a.py:B', workers = 2 }").unwrap().python.unwrap();
    assert_eq!((table.class.as_str(), table.workers), ("a.py:B", 2));
    assert_eq!(read("url = 'http://127.0.0.1:9'").unwrap().url.unwrap().url, "http://127.0.0.1:9");
}

#[test]
fn what_is_wrong_is_named_with_its_key() {
    for (text, expected) in [
        ("", "environment.name: expected exactly one of name, python and url, found 0 of them"),
        ("name = 'calculator'\nurl = 'http://x'", "found 2 of them"),
        ("name = 'chess'", "unknown variant `chess`, expected `calculator` or `number_game`"),
        ("name = 'calculator'\nturns = 0", "environment.turns: expected 1 to 4096, found 0"),
        ("name = 'calculator'\nturn_tokens = 0", "environment.turn_tokens: expected 1 to"),
        ("name = 'calculator'\nturn_time = -1.0", "environment.turn_time: expected seconds, above 0"),
        ("name = 'calculator'\ntool = 3", "unknown field `tool`"),
        ("python = 'chess'", "environment.python.class: expected module:Class"),
        ("python = { class = 'a:B', workers = 0 }", "python.workers"),
        ("url = 'example.org'", "environment.url: expected a base URL that begins with http://"),
        ("url = { url = 'http://x', call_s = 0.0 }", "environment.url.call_s: expected seconds"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
