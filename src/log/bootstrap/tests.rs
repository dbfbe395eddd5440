use super::*;
use crate::disk::faulty::FaultyDisk;

const MINE: [u8; 16] = [1; 16];

fn seeker(node_id: u64, seeds: &[&str]) -> Seeker<'static> {
    Seeker {
        node_id,
        me: node(node_id),
        seeds: seeds.iter().map(|seed| (*seed).to_owned()).collect(),
        cluster_id: None,
        data_dir: Path::new("/data"),
        disk: Arc::new(FaultyDisk::new(1)),
    }
}

fn node(id: u64) -> Node {
    Node { rpc: format!("n{id}:1"), host: format!("n{id}"), port: 9092, rack: None }
}

/// What the node `id` says; the one that asks has process `MINE`.
fn says(id: u64, seeds: &[&str], standing: Standing) -> (String, io::Result<Discovered>) {
    let process = if id == 1 { MINE } else { [id as u8; 16] };
    let seeds: Vec<String> = seeds.iter().map(|seed| (*seed).to_owned()).collect();
    (format!("n{id}:1"), Ok(Discovered { node_id: id, process, node: node(id), seeds, standing }))
}

const ALL: [&str; 3] = ["n1:1", "n2:1", "n3:1"];

fn empty(id: u64) -> (String, io::Result<Discovered>) {
    says(id, &ALL, Standing::Empty)
}

fn waits(verdict: Verdict) -> String {
    match verdict {
        Verdict::Wait(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_lowest_id_founds_once_all_seeds_agree() {
    let verdict = seeker(1, &ALL).judge(MINE, vec![empty(3), empty(1), empty(2)]);
    assert_eq!(verdict, Verdict::Found((1..=3).map(|id| (id, node(id))).collect()));
    assert!(waits(seeker(2, &ALL).judge([2; 16], vec![empty(1), empty(2), empty(3)])).contains("node 1 founds"));
}

#[test]
fn nothing_is_founded_while_a_seed_is_missing_or_thinks_otherwise() {
    let gone = ("n3:1".to_owned(), Err(io::Error::from(io::ErrorKind::ConnectionRefused)));
    assert!(waits(seeker(1, &ALL).judge(MINE, vec![empty(1), empty(2), gone])).contains("n3:1"));
    let other = says(3, &["n3:1"], Standing::Empty);
    assert!(waits(seeker(1, &ALL).judge(MINE, vec![empty(1), empty(2), other])).contains("other seeds"));
    let invited = says(3, &ALL, Standing::Invited([7; 16]));
    assert!(waits(seeker(1, &ALL).judge(MINE, vec![empty(1), empty(2), invited])).contains("being invited"));
    let stranger = seeker(4, &["n1:1"]).judge([4; 16], vec![says(1, &["n1:1"], Standing::Empty)]);
    assert!(waits(stranger).contains("not one of them"));
}

#[test]
fn two_nodes_with_one_id_are_refused() {
    let (address, twin) = says(1, &ALL, Standing::Empty);
    let twin = twin.map(|twin| Discovered { process: [9; 16], ..twin });
    let verdict = seeker(1, &ALL).judge(MINE, vec![empty(1), (address, twin), empty(3)]);
    assert!(matches!(&verdict, Verdict::Refuse(why) if why.contains("--node-id")), "{verdict:?}");
}

#[test]
fn a_cluster_that_exists_is_joined_unless_it_knows_this_id() {
    let formed = |members: &[u64]| says(2, &ALL, Standing::Formed([8; 16], members.to_vec()));
    assert_eq!(seeker(4, &ALL).judge([4; 16], vec![formed(&[2, 3])]), Verdict::Join([8; 16]));
    let verdict = seeker(1, &ALL).judge(MINE, vec![formed(&[1, 2])]);
    assert!(matches!(&verdict, Verdict::Refuse(why) if why.contains("remove")), "{verdict:?}");
    let asked = Seeker { cluster_id: Some([5; 16]), ..seeker(4, &ALL) };
    assert!(matches!(asked.judge([4; 16], vec![formed(&[2, 3])]), Verdict::Refuse(_)), "another cluster");
}
