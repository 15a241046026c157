//! Snapshots and exports over HTTP.

use rolldock_queue::{ExportFormat, PartitionSpec, Put, Queue, QueueError, ServiceConfig, Take};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::tour::{batch, soon};
use super::{served, spec};

#[tokio::test]
async fn a_snapshot_goes_over_http_both_ways() {
    let source = served(ServiceConfig::default()).await;
    // A snapshot may be far larger than the limit for bodies that the server reads into memory.
    let target = served(ServiceConfig { body_bytes_max: 1_000, ..ServiceConfig::default() }).await;
    let (from, to) = (source.client(), target.client());
    from.declare(PartitionSpec::new("train", ["train"], 4_096)).await.unwrap();
    for group in 0..40 {
        from.put("train", Put::group(format!("g{group}"), batch(group * 50, 50)), soon()).await.unwrap();
    }
    from.declare(PartitionSpec::new("other/one", ["train"], 8)).await.unwrap();
    let mut bytes = Vec::new();
    let length = from.snapshot(None, &mut bytes).await.unwrap();
    assert!(length == bytes.len() as u64 && length > 10_000, "{length}");
    let counts = to.restore(std::io::Cursor::new(bytes.clone())).await.unwrap();
    assert_eq!((counts.partitions, counts.rows, counts.chunks), (2, 2_000, 1));
    let taken = to.take("train", &Take::groups("train", 40)).await.unwrap().unwrap();
    assert_eq!(taken.concat().unwrap(), batch(0, 2_000));
    taken.nack().await.unwrap();
    assert!(to.verify().await.unwrap().is_sound());

    let again = to.restore(std::io::Cursor::new(bytes.clone())).await;
    assert_eq!(again, Err(QueueError::PartitionExists { name: "other/one".to_owned() }));
    assert_eq!(to.clear_all("train").await.unwrap(), 2_000);
    assert_eq!(target.queue.partition("train").unwrap().stats().dispositions.cleared, 2_000);
    to.remove("train").await.unwrap();
    to.remove("other/one").await.unwrap();
    assert!(matches!(to.remove("train").await, Err(QueueError::UnknownPartition { .. })));
    let cut = to.restore(std::io::Cursor::new(bytes[..bytes.len() / 2].to_vec())).await;
    assert!(matches!(cut, Err(QueueError::BadSnapshot { .. })), "{cut:?}");
    let none = to.restore(std::io::Cursor::new(vec![b'x'; 3 << 20])).await;
    assert!(matches!(none, Err(QueueError::BadSnapshot { offset: 0, .. })), "{none:?}");
    assert!(target.queue.partitions().is_empty());

    let mut one = Vec::new();
    from.snapshot(Some("other/one"), &mut one).await.unwrap();
    assert_eq!(to.restore(std::io::Cursor::new(one)).await.unwrap().partitions, 1);
    let unknown = from.snapshot(Some("missing"), &mut Vec::new()).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })));

    // A restore whose connection is lost restores nothing.
    let mut broken = TcpStream::connect(target.address).await.unwrap();
    let head = format!("POST /v1/restore HTTP/1.1\r\nhost: q\r\ncontent-length: {}\r\n\r\n", bytes.len());
    broken.write_all(head.as_bytes()).await.unwrap();
    broken.write_all(&bytes[..bytes.len() - 10]).await.unwrap();
    broken.shutdown().await.unwrap();
    broken.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(target.queue.partitions().len(), 1);
}

#[tokio::test]
async fn exports_come_over_http_as_they_are_made_here() {
    let served = served(ServiceConfig::default()).await;
    let client = served.client();
    client.declare(spec()).await.unwrap();
    for group in 0..3 {
        client.put("train", Put::group(group.to_string(), batch(group * 9, 9)), soon()).await.unwrap();
    }
    let partition = served.queue.partition("train").unwrap();
    for format in [ExportFormat::Parquet, ExportFormat::Jsonl, ExportFormat::Arrow] {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        assert_eq!(partition.export(format, &mut here).await.unwrap(), 27);
        client.export("train", format, &mut there).await.unwrap();
        assert!(here == there && here.len() > 500, "{format:?}");
    }
    let mut file = Vec::new();
    client.export("train", ExportFormat::Arrow, &mut file).await.unwrap();
    let reader = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(file), None).unwrap();
    assert_eq!(reader.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 27);
    let unknown = client.export("missing", ExportFormat::Arrow, Vec::new()).await;
    assert!(matches!(unknown, Err(QueueError::UnknownPartition { .. })));
}
