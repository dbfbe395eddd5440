//! The shapes of the requests we serve, from Kafka's message definitions (`clients/src/main/resources/common/message`).
//!
//! A test builds requests of every version from these shapes and lets the generated decoders read them.

use super::shape::Kind::{Bytes, I8, I16, I32, I64, Plain, Str, Structs, Uuid};
use super::shape::{Field, Shape, all, between, since, until};

const fn shape(flexible_since: i16, fields: &'static [Field]) -> Shape {
    Shape { flexible_since, fields }
}

/// (topic name, partition numbers): several requests list partitions so.
const TOPIC_PARTITIONS: Field = all(Structs(&[all(Str), all(Plain(&I32))]));

/// Key 0.
pub static PRODUCE: Shape = shape(
    9,
    &[
        since(3, Str),
        all(I16),
        all(I32),
        all(Structs(&[until(12, Str), since(13, Uuid), all(Structs(&[all(I32), all(Bytes)]))])),
    ],
);

/// Key 1.
pub static FETCH: Shape = shape(
    12,
    &[
        until(14, I32),
        all(I32),
        all(I32),
        since(3, I32),
        since(4, I8),
        since(7, I32),
        since(7, I32),
        all(Structs(&[
            until(12, Str),
            since(13, Uuid),
            all(Structs(&[all(I32), since(9, I32), all(I64), since(12, I32), since(5, I64), all(I32)])),
        ])),
        since(7, Structs(&[until(12, Str), since(13, Uuid), all(Plain(&I32))])),
        since(11, Str),
    ],
);

/// Key 2.
pub static LIST_OFFSETS: Shape = shape(
    6,
    &[
        all(I32),
        since(2, I8),
        all(Structs(&[all(Str), all(Structs(&[all(I32), since(4, I32), all(I64)]))])),
        since(10, I32),
    ],
);

/// Key 3.
pub static METADATA: Shape =
    shape(9, &[all(Structs(&[since(10, Uuid), all(Str)])), since(4, I8), between(8, 10, I8), since(8, I8)]);

/// Key 8.
pub static OFFSET_COMMIT: Shape = shape(
    8,
    &[
        all(Str),
        since(1, I32),
        since(1, Str),
        since(7, Str),
        between(2, 4, I64),
        all(Structs(&[all(Str), all(Structs(&[all(I32), all(I64), since(6, I32), all(Str)]))])),
    ],
);

/// Key 9.
pub static OFFSET_FETCH: Shape = shape(
    6,
    &[
        until(7, Str),
        Field { until: 7, ..TOPIC_PARTITIONS },
        since(8, Structs(&[all(Str), since(9, Str), since(9, I32), TOPIC_PARTITIONS])),
        since(7, I8),
    ],
);

/// Key 10.
pub static FIND_COORDINATOR: Shape = shape(3, &[until(3, Str), since(1, I8), since(4, Plain(&Str))]);

/// Key 11.
pub static JOIN_GROUP: Shape = shape(
    6,
    &[
        all(Str),
        all(I32),
        since(1, I32),
        all(Str),
        since(5, Str),
        all(Str),
        all(Structs(&[all(Str), all(Bytes)])),
        since(8, Str),
    ],
);

/// Key 12.
pub static HEARTBEAT: Shape = shape(4, &[all(Str), all(I32), all(Str), since(3, Str)]);

/// Key 13.
pub static LEAVE_GROUP: Shape =
    shape(4, &[all(Str), until(2, Str), since(3, Structs(&[all(Str), all(Str), since(5, Str)]))]);

/// Key 14.
pub static SYNC_GROUP: Shape = shape(
    4,
    &[all(Str), all(I32), all(Str), since(3, Str), since(5, Str), since(5, Str), all(Structs(&[all(Str), all(Bytes)]))],
);

/// Key 15.
pub static DESCRIBE_GROUPS: Shape = shape(5, &[all(Plain(&Str)), since(3, I8)]);

/// Key 16.
pub static LIST_GROUPS: Shape = shape(3, &[since(4, Plain(&Str)), since(5, Plain(&Str))]);

/// Key 18.
pub static API_VERSIONS: Shape = shape(3, &[since(3, Str), since(3, Str)]);

/// Key 19.
pub static CREATE_TOPICS: Shape = shape(
    5,
    &[
        all(Structs(&[
            all(Str),
            all(I32),
            all(I16),
            all(Structs(&[all(I32), all(Plain(&I32))])),
            all(Structs(&[all(Str), all(Str)])),
        ])),
        all(I32),
        since(1, I8),
    ],
);

/// Key 20.
pub static DELETE_TOPICS: Shape =
    shape(4, &[since(6, Structs(&[all(Str), all(Uuid)])), until(5, Plain(&Str)), all(I32)]);

/// Key 21.
pub static DELETE_RECORDS: Shape =
    shape(2, &[all(Structs(&[all(Str), all(Structs(&[all(I32), all(I64)]))])), all(I32)]);

/// Key 22.
pub static INIT_PRODUCER_ID: Shape = shape(2, &[all(Str), all(I32), since(3, I64), since(3, I16)]);

/// Key 23.
pub static OFFSET_FOR_LEADER_EPOCH: Shape =
    shape(4, &[since(3, I32), all(Structs(&[all(Str), all(Structs(&[all(I32), since(2, I32), all(I32)]))]))]);

/// Key 24.
pub static ADD_PARTITIONS_TO_TXN: Shape = shape(
    3,
    &[
        since(4, Structs(&[all(Str), all(I64), all(I16), all(I8), TOPIC_PARTITIONS])),
        until(3, Str),
        until(3, I64),
        until(3, I16),
        Field { until: 3, ..TOPIC_PARTITIONS },
    ],
);

/// Key 25.
pub static ADD_OFFSETS_TO_TXN: Shape = shape(3, &[all(Str), all(I64), all(I16), all(Str)]);

/// Key 26.
pub static END_TXN: Shape = shape(3, &[all(Str), all(I64), all(I16), all(I8)]);

/// Key 28.
pub static TXN_OFFSET_COMMIT: Shape = shape(
    3,
    &[
        all(Str),
        all(Str),
        all(I64),
        all(I16),
        since(3, I32),
        since(3, Str),
        since(3, Str),
        all(Structs(&[all(Str), all(Structs(&[all(I32), all(I64), since(2, I32), all(Str)]))])),
    ],
);

/// Key 32.
pub static DESCRIBE_CONFIGS: Shape =
    shape(4, &[all(Structs(&[all(I8), all(Str), all(Plain(&Str))])), since(1, I8), since(3, I8)]);

/// Key 33.
pub static ALTER_CONFIGS: Shape =
    shape(2, &[all(Structs(&[all(I8), all(Str), all(Structs(&[all(Str), all(Str)]))])), all(I8)]);

/// Key 35.
pub static DESCRIBE_LOG_DIRS: Shape = shape(2, &[TOPIC_PARTITIONS]);

/// Key 37.
pub static CREATE_PARTITIONS: Shape =
    shape(2, &[all(Structs(&[all(Str), all(I32), all(Structs(&[all(Plain(&I32))]))])), all(I32), all(I8)]);

/// Key 42.
pub static DELETE_GROUPS: Shape = shape(2, &[all(Plain(&Str))]);

/// Key 44.
pub static INCREMENTAL_ALTER_CONFIGS: Shape =
    shape(1, &[all(Structs(&[all(I8), all(Str), all(Structs(&[all(Str), all(I8), all(Str)]))])), all(I8)]);

/// Key 60.
pub static DESCRIBE_CLUSTER: Shape = shape(0, &[all(I8), since(1, I8), since(2, I8)]);

/// Key 43.
pub static ELECT_LEADERS: Shape = shape(2, &[since(1, I8), all(Structs(&[all(Str), all(Plain(&I32))])), all(I32)]);

/// Key 55.
pub static DESCRIBE_QUORUM: Shape = shape(0, &[all(Structs(&[all(Str), all(Structs(&[all(I32)]))]))]);

/// Key 80.
pub static ADD_RAFT_VOTER: Shape =
    shape(0, &[all(Str), all(I32), all(I32), all(Uuid), all(Structs(&[all(Str), all(Str), all(I16)]))]);

/// Key 81.
pub static REMOVE_RAFT_VOTER: Shape = shape(0, &[all(Str), all(I32), all(Uuid)]);
