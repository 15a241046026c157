use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rolldock_reward::WorkerPool;
use rolldock_reward::external::ShortForm;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{PythonConfig, PythonEnvironment};
use crate::environment::{Action, Environment, Observation, Task};

const CLASSES: &str = r#"
import asyncio, os, time

class Echo:
    def __init__(self):
        self.resets = 0

    def reset(self, *, messages, answer, fields, seed):
        self.resets += 1
        self.turns = 0
        return messages

    def step(self, *, text, ids):
        self.turns += 1
        if text == "raise":
            raise ValueError("no such move")
        if text == "die":
            os._exit(7)
        if text == "hang":
            time.sleep(600)
        if text == "nonsense":
            return {"messages": 3}
        if text == "object":
            return object()
        said = f"{text} {len(ids)} {self.turns} {self.resets} {os.getpid()}"
        print("this is not an answer")
        return {"messages": [{"role": "user", "content": said}], "reward": 0.25, "done": self.turns == 2}

class Later:
    async def reset(self, *, messages, answer, fields, seed):
        await asyncio.sleep(0)
        return {"messages": messages, "tools": [{"name": answer}]}

    async def step(self, *, text, ids):
        await asyncio.sleep(0)
        return {"ids": ids, "done": False}

class Broken:
    def __init__(self):
        raise RuntimeError("no licence")
"#;

struct Rig {
    pool: Arc<WorkerPool>,
    _folder: tempfile::TempDir,
}

fn rig(class: &str, workers: usize) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("classes.py");
    std::fs::write(&file, CLASSES).unwrap();
    let config = PythonConfig { workers, ..PythonConfig::of_text(&named(&file, class)).unwrap() };
    config.check().unwrap();
    let pool = config.open(TaskTracker::new(), &CancellationToken::new()).unwrap();
    Rig { pool: Arc::new(pool), _folder: folder }
}

fn named(file: &Path, class: &str) -> String {
    format!("{}:{class}", file.display())
}

fn task() -> Task {
    Task {
        messages: vec![json!({ "role": "user", "content": "begin" })],
        answer: "14".to_owned(),
        fields: json!({}),
        seed: 7,
    }
}

/// The words that a step returns: the text, and the numbers of the ids, the turn, the reset and the process.
async fn said(environment: &mut PythonEnvironment, text: &str) -> Result<Vec<String>, String> {
    let step = environment.step(Action { text, ids: &[1, 2, 3] }).await.map_err(|error| error.to_string())?;
    let Observation::Messages(messages) = step.observation else { panic!("expected messages") };
    Ok(messages[0]["content"].as_str().unwrap().split(' ').map(str::to_owned).collect())
}

#[tokio::test]
async fn a_process_serves_one_trajectory_after_the_other() {
    let rig = rig("Echo", 1);
    let mut first = PythonEnvironment::begin(&rig.pool).await.unwrap();
    assert_eq!(first.reset(&task()).await.unwrap().messages, task().messages);
    let words = said(&mut first, "on").await.unwrap();
    assert_eq!(words[..4], ["on", "3", "1", "1"]);
    assert_eq!(said(&mut first, "on").await.unwrap()[2], "2");
    let raised = said(&mut first, "raise").await.unwrap_err();
    assert!(raised.contains("ValueError: no such move") && raised.contains("classes.py"), "{raised}");
    drop(first);
    let mut second = PythonEnvironment::begin(&rig.pool).await.unwrap();
    second.reset(&task()).await.unwrap();
    let again = said(&mut second, "on").await.unwrap();
    assert_eq!((&again[2..4], &again[4]), (&["1".to_owned(), "2".to_owned()][..], &words[4]));
}

#[tokio::test]
async fn a_process_that_dies_or_hangs_is_replaced() {
    let rig = rig("Echo", 1);
    let mut first = PythonEnvironment::begin(&rig.pool).await.unwrap();
    first.reset(&task()).await.unwrap();
    let process = said(&mut first, "on").await.unwrap()[4].clone();
    let died = said(&mut first, "die").await.unwrap_err();
    assert!(died.contains("exit status: 7"), "{died}");
    let lost = said(&mut first, "on").await.unwrap_err();
    assert!(lost.contains("in an earlier question"), "{lost}");
    drop(first);

    let mut second = PythonEnvironment::begin(&rig.pool).await.unwrap();
    second.reset(&task()).await.unwrap();
    assert_ne!(said(&mut second, "on").await.unwrap()[4], process);
    let hung = tokio::time::timeout(Duration::from_millis(200), said(&mut second, "hang")).await;
    assert!(hung.is_err());
    drop(second);
    // The pool has only one place. It becomes free only because the hanging process was killed.
    let mut third = PythonEnvironment::begin(&rig.pool).await.unwrap();
    third.reset(&task()).await.unwrap();
}

#[tokio::test]
async fn nonsense_is_an_error_of_its_trajectory() {
    let rig = rig("Echo", 1);
    let mut environment = PythonEnvironment::begin(&rig.pool).await.unwrap();
    environment.reset(&task()).await.unwrap();
    let nonsense = said(&mut environment, "nonsense").await.unwrap_err();
    assert!(nonsense.contains("expected messages that are a list"), "{nonsense}");
    let object = said(&mut environment, "object").await.unwrap_err();
    assert!(object.contains("not JSON serializable"), "{object}");
    assert_eq!(said(&mut environment, "on").await.unwrap()[0], "on", "the process goes on");
}

#[tokio::test]
async fn async_methods_and_ids_are_understood() {
    let rig = rig("Later", 2);
    let mut environment = PythonEnvironment::begin(&rig.pool).await.unwrap();
    let begun = environment.reset(&task()).await.unwrap();
    assert_eq!(begun.tools, Some(json!([{ "name": "14" }])));
    let step = environment.step(Action { text: "on", ids: &[5, 6] }).await.unwrap();
    assert_eq!(step.observation, Observation::Ids(vec![5, 6]));
}

#[tokio::test]
async fn classes_that_cannot_be_used_are_found_by_the_check() {
    for (class, expected) in [
        ("Broken", "RuntimeError: no licence"),
        ("Missing", "has no attribute 'Missing'"),
        ("task", "has no attribute 'task'"),
    ] {
        let rig = rig(class, 1);
        let error = rig.pool.check().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{class}: {error}");
    }
}
