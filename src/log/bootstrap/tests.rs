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

/// What node `id` of cluster 8 says: these vote, by the entry at this index.
fn formed(id: u64, at: u64, voters: &[u64]) -> (String, io::Result<Discovered>) {
    let nodes = voters.iter().map(|id| (*id, format!("n{id}:1"))).collect();
    let members = Members { at: (1, at), voters: vec![voters.iter().copied().collect()], nodes };
    says(id, &ALL, Standing::Formed([8; 16], members))
}

fn silent(id: u64) -> (String, io::Result<Discovered>) {
    (format!("n{id}:1"), Err(io::ErrorKind::ConnectionRefused.into()))
}

fn refused(verdict: Verdict) -> String {
    match verdict {
        Verdict::Refuse(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_that_exists_is_joined_unless_it_knows_this_id() {
    let two = || vec![formed(2, 5, &[2, 3]), formed(3, 5, &[2, 3]), silent(1)];
    assert_eq!(seeker(4, &ALL).judge([4; 16], two()), Verdict::Join([8; 16]));
    assert!(refused(seeker(2, &ALL).judge(MINE, two())).contains("remove"));
    let twin = vec![formed(2, 5, &[2, 3]), formed(3, 5, &[2, 3]), formed(4, 4, &[2, 3])];
    assert!(refused(seeker(4, &ALL).judge([4; 16], twin)).contains("as n4:1 says"));
    let asked = Seeker { cluster_id: Some([5; 16]), ..seeker(4, &ALL) };
    assert!(refused(asked.judge([4; 16], two())).contains("not the one asked for"));
}

#[test]
fn a_voter_that_lost_its_disk_is_refused_whatever_an_older_answer_says() {
    let lost = seeker(4, &ALL);
    let answers = || vec![formed(1, 5, &[1, 2, 3]), formed(3, 5, &[1, 2, 3]), formed(2, 9, &[2, 3, 4])];
    assert!(refused(lost.judge([4; 16], answers())).contains("node 4 already"));
    let reversed = answers().into_iter().rev().collect();
    assert!(refused(lost.judge([4; 16], reversed)).contains("node 4 already"));
}

#[test]
fn without_a_majority_of_the_newest_voters_nothing_is_joined() {
    let new = seeker(9, &ALL);
    let wait = waits(new.judge([9; 16], vec![formed(1, 5, &[1, 2, 3]), silent(2), silent(3)]));
    assert!(wait.contains("node 2 at n2:1, node 3 at n3:1"), "{wait}");
    // Of the newest list, not of an older one.
    let wait =
        waits(new.judge([9; 16], vec![formed(1, 5, &[1, 2, 3]), formed(2, 5, &[1, 2, 3]), formed(3, 9, &[3, 4, 5])]));
    assert!(wait.contains("node 4"), "{wait}");
    // Twice the same node is one.
    let again = vec![formed(1, 5, &[1, 2, 3]), formed(1, 5, &[1, 2, 3])];
    waits(new.judge([9; 16], again));
    // Of both sets while they change.
    let (address, answer) = formed(1, 5, &[1, 2, 3]);
    let answer = answer.map(|mut answer| {
        let Standing::Formed(_, members) = &mut answer.standing else { panic!("formed") };
        members.at = (1, 6);
        members.voters.push([3, 4, 5].into());
        answer
    });
    waits(new.judge([9; 16], vec![(address, answer), formed(2, 5, &[1, 2, 3])]));
}

#[test]
fn a_removed_node_says_nothing_about_its_cluster() {
    let removed = says(2, &ALL, Standing::Removed([8; 16]));
    assert!(waits(seeker(1, &ALL).judge(MINE, vec![empty(1), removed, empty(3)])).contains("was removed"));
    let removed = says(2, &ALL, Standing::Removed([8; 16]));
    let verdict = seeker(4, &ALL).judge([4; 16], vec![removed, formed(3, 5, &[1, 3]), formed(1, 5, &[1, 3])]);
    assert_eq!(verdict, Verdict::Join([8; 16]));
}

#[test]
fn seeds_of_different_clusters_are_not_joined() {
    let (address, other) = formed(3, 5, &[3]);
    let other = other.map(|mut other| {
        let Standing::Formed(cluster, _) = &mut other.standing else { panic!("formed") };
        *cluster = [7; 16];
        other
    });
    let verdict = seeker(4, &ALL).judge([4; 16], vec![formed(1, 5, &[1]), (address, other)]);
    assert!(waits(verdict).contains("but n3:1 to cluster"));
}
