use super::*;

fn summary() -> Summary {
    Summary {
        steps: 6,
        interrupted: false,
        ended_by: None,
        resume_command: None,
        totals: Totals::default(),
        tokens: TokenTotals::default(),
        gates: Vec::new(),
        reward_outages: 0,
        reward_out: Duration::ZERO,
        drawn: DrawCounts::default(),
        consumed_groups: Some(56),
        rows_left: 0,
        rows_stale: 0,
        group_rows: Some(8),
        out: PathBuf::from("runs/r"),
        task: "train".to_owned(),
    }
}

#[test]
fn accepted_groups_that_became_stale_in_the_queue_are_counted() {
    let none = summary().to_string();
    assert!(!none.contains("the queue dropped"), "{none}");
    let some = Summary { rows_stale: 320, ..summary() }.to_string();
    assert!(some.contains("\nthe queue dropped 40 accepted groups (320 rows) as stale: "), "{some}");
    // The rows of a trajectory do not tell how many groups there were.
    let unknown = Summary { rows_stale: 320, group_rows: None, ..summary() }.to_string();
    assert!(unknown.contains("\nthe queue dropped 320 rows of accepted groups as stale: "), "{unknown}");
}
