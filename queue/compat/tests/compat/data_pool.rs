//! Tests for known faults of other data pools.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use rolldock_queue::{OnFull, Queue, QueueError, Unfinished};
use rolldock_queue_compat::{DataPool, Path, PoolConfig, Step, StepTurn};

use super::{memory, on_disk, pool, pool_config, step, submit_group, texts};

fn flags(batch: &RecordBatch, column: &str) -> Vec<bool> {
    batch[column].as_boolean().iter().map(Option::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn one_unfinished_rollout_at_the_head_blocks_no_fetch() {
    let pool = pool(pool_config(64)).await;
    pool.submit_step(step("slow", "slow-a", 0, false)).await.unwrap();
    assert!(pool.fetch_batch("train", 4).await.unwrap().is_none(), "expected no batch, without a wait");
    submit_group(&pool, "p").await;
    submit_group(&pool, "q").await;
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(batch.prompt_uids(), ["p"]);
    batch.consume().await.unwrap();
    // The slow group is fetched once its last trajectory is complete, whatever the order of its steps.
    pool.submit_step(step("slow", "slow-b", 1, false)).await.unwrap();
    pool.submit_step(step("slow", "slow-a", 1, true)).await.unwrap();
    pool.submit_step(step("slow", "slow-b", 0, false)).await.unwrap();
    let dropped = pool.fetch_batch("train", 4).await.unwrap().unwrap();
    assert_eq!(dropped.prompt_uids(), ["q"]);
    drop(dropped);
    let waiting = pool.wait_batch("train", 4, Duration::from_secs(30));
    let (batch, ()) = tokio::join!(waiting, async {
        tokio::task::yield_now().await;
        pool.complete_trajectory("slow-b").await.unwrap();
        pool.complete_trajectory("slow-b").await.unwrap();
    });
    drop(batch);
    let batch = pool.fetch_batch("train", 4).await.unwrap().unwrap();
    assert_eq!(batch.prompt_uids(), ["slow", "q"]);
    assert_eq!(texts(batch.batch(), "trajectory_uid")[..4], ["slow-a", "slow-a", "slow-b", "slow-b"]);
    assert_eq!(batch.batch()["step_index"].as_primitive::<UInt32Type>().values()[..4], [0, 1, 0, 1]);
    assert!(!batch.is_incomplete());
}

#[tokio::test(start_paused = true)]
async fn late_steps_are_refused_and_create_no_group() {
    let queue = Arc::new(memory());
    let config = PoolConfig { unfinished: Unfinished::Give, ..pool_config(64) };
    let pool = DataPool::open(queue.clone(), config).await.unwrap();
    let closed = |outcome: Result<(), QueueError>| {
        assert!(matches!(outcome, Err(QueueError::GroupClosed { .. })), "{outcome:?}");
    };
    pool.submit_step(step("p", "a", 0, true)).await.unwrap();
    let late = pool.submit_step(step("p", "a", 1, false)).await;
    assert!(matches!(late, Err(QueueError::SampleClosed { .. })), "{late:?}");
    pool.submit_step(step("p", "b", 0, true)).await.unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    batch.consume().await.unwrap();
    closed(pool.submit_step(step("p", "c", 0, true)).await);
    closed(pool.submit_step(step("p", "a", 0, true)).await);
    let gone = pool.complete_trajectory("a").await;
    assert!(matches!(gone, Err(QueueError::UnknownSample { .. })), "{gone:?}");
    // A group that is given up is delivered with the steps that it has.
    pool.submit_step(step("late", "d", 0, false)).await.unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!((batch.prompt_uids(), batch.is_incomplete()), (vec!["late"], true));
    assert_eq!(flags(batch.batch(), "incomplete"), [true]);
    closed(pool.submit_step(step("late", "d", 1, true)).await);
    closed(pool.complete_trajectory("d").await);
    batch.consume().await.unwrap();
    closed(pool.submit_step(step("late", "d", 1, true)).await);
    let stats = Queue::status(queue.as_ref(), "pool").await.unwrap();
    assert_eq!((stats.rows, stats.groups, pool.expired_groups()), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_given_up_are_dropped_where_that_is_wanted() {
    let queue = Arc::new(memory());
    let pool = DataPool::open(queue.clone(), pool_config(64)).await.unwrap();
    pool.submit_steps(&[step("p", "a", 0, false), step("p", "a", 1, true)]).await.unwrap();
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(pool.expire().await.unwrap(), []);
    tokio::time::advance(Duration::from_secs(2)).await;
    let given_up = pool.expire().await.unwrap();
    let of = |at: usize| (given_up[at].samples, given_up[at].samples_whole, given_up[at].rows);
    assert_eq!((given_up.len(), of(0)), (1, (2, 1, 2)));
    let stats = Queue::status(queue.as_ref(), "pool").await.unwrap();
    assert_eq!((stats.rows, stats.groups, stats.dispositions.dropped), (0, 0, 2));
    let late = pool.submit_step(step("p", "b", 0, true)).await;
    assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_a_limit_while_no_consumer_fetches() {
    let mut config = PoolConfig { submit_wait: Duration::from_secs(5), ..pool_config(4) };
    config.partition.on_full = OnFull::Block;
    let queue = Arc::new(memory());
    let pool = DataPool::open(queue.clone(), config.clone()).await.unwrap();
    // The steps of incomplete groups count too.
    for (index, is_last) in [(0, false), (1, false), (2, false), (3, true)] {
        pool.submit_step(step("p", "a", index, is_last)).await.unwrap();
    }
    let full = pool.submit_step(step("p", "b", 0, true)).await;
    assert!(matches!(full, Err(QueueError::Deadline { .. })), "{full:?}");
    assert_eq!(Queue::status(queue.as_ref(), "pool").await.unwrap().rows, 4);
    // An incomplete group is given up in time, even while a submission waits for the capacity that the group
    // uses.
    let patient = PoolConfig { submit_wait: Duration::from_secs(600), ..config };
    let pool = DataPool::open(queue.clone(), patient).await.unwrap();
    pool.submit_step(step("q", "c", 0, true)).await.unwrap();
    assert_eq!(Queue::status(queue.as_ref(), "pool").await.unwrap().rows, 1);

    let mut refusing = pool_config(2);
    refusing.partition.on_full = OnFull::Refuse;
    let pool = DataPool::open(Arc::new(memory()), refusing).await.unwrap();
    submit_group(&pool, "p").await;
    let full = pool.submit_step(step("q", "c", 0, true)).await;
    assert!(matches!(full, Err(QueueError::Full { .. })), "{full:?}");
    pool.fetch_batch("train", 1).await.unwrap().unwrap().consume().await.unwrap();
    submit_group(&pool, "q").await;
}

#[tokio::test]
async fn duplicate_steps_are_kept_once() {
    let pool = pool(pool_config(64)).await;
    let first = step("p", "a", 0, false);
    pool.submit_step(first.clone()).await.unwrap();
    pool.submit_step(first.clone()).await.unwrap();
    let other = pool.submit_step(Step { reward: 0.25, ..first.clone() }).await;
    assert_eq!(other, Err(QueueError::StepDiffers { trajectory: "a".to_owned(), step: 0 }));
    // Some steps are new, some exist, and one comes twice in a call. The result does not depend on whether
    // the trajectory or the group is complete.
    let steps = [first.clone(), step("p", "a", 1, false), step("p", "a", 1, false), step("p", "a", 2, true)];
    pool.submit_steps(&steps).await.unwrap();
    pool.submit_steps(&steps).await.unwrap();
    pool.submit_step(step("p", "b", 0, true)).await.unwrap();
    pool.submit_steps(&steps).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(batch.batch()["step_index"].as_primitive::<UInt32Type>().values()[..], [0, 1, 2, 0]);
    // Submit one step twice at the same time.
    let twice = step("q", "c", 0, false);
    let (left, right) = tokio::join!(pool.submit_step(twice.clone()), pool.submit_step(twice));
    assert_eq!((left, right), (Ok(()), Ok(())));
}

#[tokio::test]
async fn columns_of_a_path_that_do_not_fit_its_tokens_are_refused() {
    let pool = pool(pool_config(64)).await;
    let turn = |start, end| StepTurn { start, end, reward: None };
    // The step has two tokens and the policy version 0.
    for (path, expected) in [
        (Path { response_mask: Some(vec![1]), ..Path::default() }, "response_mask of 0 and 1"),
        (Path { response_mask: Some(vec![1, 2]), ..Path::default() }, "response_mask of 0 and 1"),
        (Path { rollout_logprobs: vec![0.0], ..Path::default() }, "none or all of tokens=2, found 1"),
        (Path { turns: Some(vec![turn(0, 3)]), ..Path::default() }, "in 0..2, found 0..3"),
        (Path { turns: Some(vec![turn(0, 1), turn(0, 2)]), ..Path::default() }, "in 1..2, found 0..2"),
        (Path { turns: Some(vec![turn(1, 1)]), ..Path::default() }, "found 1..1"),
        (Path { finish_reason: "end".to_owned(), ..Path::default() }, "found \"end\""),
    ] {
        let refused =
            pool.submit_step(Step { path, ..step("p", "a", 0, true) }).await.unwrap_err().to_string();
        assert!(refused.contains("step=0 of trajectory=a") && refused.contains(expected), "{refused}");
    }
    let older = Path { policy_version_max: Some(2), ..Path::default() };
    let refused = pool.submit_step(Step { path: older, policy_version: 3, ..step("p", "a", 0, true) }).await;
    assert!(refused.unwrap_err().to_string().contains("policy_version_max of 3 or more, found 2"));
    assert!(pool.fetch_batch("train", 1).await.unwrap().is_none());
}

#[tokio::test]
async fn the_staleness_threshold_is_used() {
    let pool = pool(PoolConfig { staleness_threshold: 2, ..pool_config(64) }).await;
    let at = |trajectory: &str, version: u64| Step {
        policy_version: version,
        ..step("p", trajectory, version as u32, version == 9)
    };
    pool.submit_steps(&[at("a", 6), at("a", 7), at("a", 9), at("b", 8), at("b", 9)]).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!(flags(batch.batch(), "off_policy"), [true, false, false, false, false]);
    assert_eq!(batch.batch()["importance_weight"].null_count(), 5);
    let (rows, weights) = (batch.rows().to_vec(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    pool.write_importance_weights(&rows, &weights).await.unwrap();
    drop(batch);
    pool.announce(10).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    assert_eq!((batch.off_policy_count(), flags(batch.batch(), "off_policy")[1]), (2, true));
    let read = batch.batch()["importance_weight"].as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(read, weights);
}

#[tokio::test]
async fn group_sizes_go_by_prompt_and_more_trajectories_are_refused() {
    let sizes = |prompt: &str| (prompt == "one").then_some(1);
    let pool = pool(PoolConfig { group_sizes: Some(Arc::new(sizes)), ..pool_config(64) }).await;
    pool.submit_step(step("one", "a", 0, true)).await.unwrap();
    assert_eq!(pool.fetch_batch("train", 9).await.unwrap().unwrap().prompt_uids(), ["one"]);
    pool.submit_step(step("two", "b", 0, false)).await.unwrap();
    pool.submit_step(step("two", "c", 0, false)).await.unwrap();
    let third = pool.submit_step(step("two", "d", 0, false)).await;
    assert!(matches!(third, Err(QueueError::GroupOverflow { size: 2, .. })), "{third:?}");
    let moved = pool.submit_step(step("three", "b", 1, false)).await;
    assert!(matches!(moved, Err(QueueError::DeclaredOtherwise { .. })), "{moved:?}");
}

#[tokio::test]
async fn a_pool_keeps_its_state_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue.clone()), pool_config(64)).await.unwrap();
    for number in 0..20 {
        let prompt = format!("p{number}");
        submit_group(&pool, &prompt).await;
        let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
        batch.consume().await.unwrap();
    }
    pool.submit_steps(&[step("q", "a", 0, false), step("q", "a", 1, true)]).await.unwrap();
    pool.submit_step(step("q", "b", 0, false)).await.unwrap();
    submit_group(&pool, "whole").await;
    queue.close();
    drop((pool, queue));

    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue.clone()), pool_config(64)).await.unwrap();
    for late in [step("p3", "z", 0, true), step("whole", "z", 0, true)] {
        let late = pool.submit_step(late).await;
        assert!(matches!(late, Err(QueueError::GroupClosed { .. })), "{late:?}");
    }
    let late = pool.submit_step(step("q", "a", 2, false)).await;
    assert!(matches!(late, Err(QueueError::SampleClosed { .. })), "{late:?}");
    pool.submit_step(step("q", "b", 0, false)).await.unwrap();
    pool.complete_trajectory("b").await.unwrap();
    queue.close();
    drop((pool, queue));

    let queue = on_disk(dir.path());
    let pool = DataPool::open(Arc::new(queue), pool_config(64)).await.unwrap();
    let batch = pool.fetch_batch("train", 9).await.unwrap().unwrap();
    assert_eq!((batch.prompt_uids(), batch.rows().len()), (vec!["q", "whole"], 5));
}
