//! Each stream command of redis-rs: `streams PORT` prints a line for each reply.
use redis::streams::*;
use redis::{Client, Commands, RedisResult};
use std::fmt::Debug;
use std::{env, thread, time::Duration};

fn say<T: Debug>(command: &str, reply: RedisResult<T>) {
    match reply {
        Ok(value) => println!("{command}\t{value:?}"),
        Err(error) => println!("{command}\t{error}"),
    }
}

fn main() -> RedisResult<()> {
    let client = Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", env::args().nth(1).expect("PORT")))?;
    let mut r = client.get_connection()?;
    let fields = [("a", "1")];
    type Id = Option<String>;
    for id in ["1-0", "2-0", "3-0", "4-0", "5-0", "1-0"] {
        say::<Id>("XADD", r.xadd("s", id, &fields));
    }
    let add = StreamAddOptions::default;
    let exact = StreamTrimStrategy::maxlen(StreamTrimmingMode::Exact, 5);
    let roughly = StreamTrimStrategy::maxlen(StreamTrimmingMode::Approx, 1).limit(9);
    let from = StreamTrimStrategy::minid(StreamTrimmingMode::Exact, "3-0");
    say::<Id>("XADD NOMKSTREAM", r.xadd_options("none", "1-0", &fields, &add().nomkstream()));
    say::<Id>("XADD MAXLEN =", r.xadd_options("s", "6-0", &fields, &add().trim(exact)));
    say::<Id>("XADD MAXLEN ~ LIMIT", r.xadd_options("s", "7-0", &fields, &add().trim(roughly)));
    say::<Id>("XADD MINID", r.xadd_options("s", "8-0", &fields, &add().trim(from)));
    say::<u64>("XLEN", r.xlen("s"));
    say::<StreamRangeReply>("XRANGE", r.xrange_count("s", "-", "+", 3));
    say::<StreamRangeReply>("XRANGE exclusive", r.xrange("s", "(4-0", "6-0"));
    say::<StreamRangeReply>("XREVRANGE", r.xrevrange_count("s", "+", "-", 2));
    let read = StreamReadOptions::default;
    say::<StreamReadReply>("XREAD", r.xread_options(&["s"], &["0"], &read().count(2)).map(Option::unwrap));
    say::<Option<StreamReadReply>>("XREAD BLOCK", r.xread_options(&["s"], &["99"], &read().block(20)));
    say::<String>("XGROUP CREATE", r.xgroup_create("s", "g", "0"));
    say::<String>("XGROUP CREATE again", r.xgroup_create("s", "g", "0"));
    say::<String>("XGROUP CREATE MKSTREAM", r.xgroup_create_mkstream("t", "g", "$"));
    say::<bool>("XGROUP CREATECONSUMER", r.xgroup_createconsumer("s", "g", "idle"));
    let mine = || read().group("g", "c");
    say::<Option<StreamReadReply>>("XREADGROUP", r.xread_options(&["s"], &[">"], &mine().count(4)));
    say::<Option<StreamReadReply>>("XREADGROUP history", r.xread_options(&["s"], &["0"], &mine().count(2)));
    say::<Option<StreamReadReply>>("XREADGROUP NOACK", r.xread_options(&["s"], &[">"], &mine().count(1).noack()));
    let none = read().group("none", "c");
    say::<Option<StreamReadReply>>("XREADGROUP no group", r.xread_options(&["s"], &[">"], &none));
    say::<u64>("XACK", r.xack("s", "g", &["3-0", "77-0"]));
    say::<StreamPendingReply>("XPENDING", r.xpending("s", "g"));
    let pending: StreamPendingCountReply = r.xpending_consumer_count("s", "g", "-", "+", 9, "c")?;
    for one in pending.ids {
        println!("XPENDING range\t{} {} {}", one.id, one.consumer, one.times_delivered);
    }
    let claim = StreamClaimOptions::default;
    say::<StreamClaimReply>("XCLAIM", r.xclaim_options("s", "g", "d", 0, &["4-0"], claim().retry(7)));
    say::<Vec<String>>("XCLAIM JUSTID", r.xclaim_options("s", "g", "d", 0, &["7-0"], claim().with_force().with_justid()));
    let auto = StreamAutoClaimOptions::default;
    say::<StreamAutoClaimReply>("XAUTOCLAIM", r.xautoclaim_options("s", "g", "e", 0, "0", auto().count(1)));
    say::<StreamAutoClaimReply>("XAUTOCLAIM JUSTID", r.xautoclaim_options("s", "g", "e", 0, "5-0", auto().with_justid()));
    say::<StreamInfoStreamReply>("XINFO STREAM", r.xinfo_stream("s"));
    say::<StreamInfoGroupsReply>("XINFO GROUPS", r.xinfo_groups("s"));
    let consumers: StreamInfoConsumersReply = r.xinfo_consumers("s", "g")?;
    for one in consumers.consumers {
        println!("XINFO CONSUMERS\t{} {}", one.name, one.pending);
    }
    say::<Vec<XAckDelStatusCode>>("XACKDEL", r.xack_del("s", "g", &["4-0"], StreamDeletionPolicy::Acked));
    say::<Vec<XDelExStatusCode>>("XDELEX", r.xdel_ex("s", &["5-0", "77-0"], StreamDeletionPolicy::DelRef));
    say::<u64>("XDEL", r.xdel("s", &["6-0", "77-0"]));
    say::<u64>("XTRIM MAXLEN", r.xtrim("s", StreamMaxlen::Equals(2)));
    let minid = StreamTrimOptions::minid(StreamTrimmingMode::Exact, "8-0");
    say::<u64>("XTRIM MINID", r.xtrim_options("s", &minid));
    say::<String>("XGROUP SETID", r.xgroup_setid("s", "g", "7-0"));
    say::<u64>("XGROUP DELCONSUMER", r.xgroup_delconsumer("s", "g", "e"));
    let mut other = client.get_connection()?;
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        other.xadd::<_, _, _, _, String>("t", "1-0", &[("a", "1")])
    });
    say::<Option<StreamReadReply>>("XREADGROUP BLOCK", r.xread_options(&["t"], &[">"], &mine().block(9000)));
    say("XADD by another", later.join().expect("the thread"));
    say::<bool>("XGROUP DESTROY", r.xgroup_destroy("s", "g"));
    say::<StreamInfoGroupsReply>("XINFO GROUPS of none", r.xinfo_groups("none"));
    Ok(())
}
