// Each stream command of go-redis: `go run . PORT` prints a line for each reply.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func say(command redis.Cmder) { fmt.Println(command) }

func main() {
	options := &redis.Options{Addr: "127.0.0.1:" + os.Args[1], ClientName: "go"}
	r := redis.NewClient(options)
	fields := []string{"a", "1"}
	for _, id := range []string{"1-0", "2-0", "3-0", "4-0", "5-0", "1-0"} {
		say(r.XAdd(ctx, &redis.XAddArgs{Stream: "s", ID: id, Values: fields}))
	}
	say(r.XAdd(ctx, &redis.XAddArgs{Stream: "none", ID: "1-0", NoMkStream: true, Values: fields}))
	say(r.XAdd(ctx, &redis.XAddArgs{Stream: "s", ID: "6-0", MaxLen: 5, Values: fields}))
	say(r.XAdd(ctx, &redis.XAddArgs{Stream: "s", ID: "7-0", MaxLen: 1, Approx: true, Limit: 9, Values: fields}))
	say(r.XAdd(ctx, &redis.XAddArgs{Stream: "s", ID: "8-0", MinID: "3-0", Values: fields}))
	once := &redis.XAddArgs{Stream: "i", ProducerID: "p", IdempotentID: "m", Values: fields}
	fmt.Println("xadd idmp twice", r.XAdd(ctx, once).Val() == r.XAdd(ctx, once).Val())
	auto := &redis.XAddArgs{Stream: "i", ProducerID: "p", IdempotentAuto: true, Values: fields}
	fmt.Println("xadd idmpauto twice", r.XAdd(ctx, auto).Val() == r.XAdd(ctx, auto).Val())
	say(r.XCfgSet(ctx, &redis.XCfgSetArgs{Stream: "i", Duration: 50, MaxSize: 9}))
	say(r.XLen(ctx, "i"))
	say(r.XLen(ctx, "s"))
	say(r.XRange(ctx, "s", "-", "+"))
	say(r.XRangeN(ctx, "s", "(4-0", "6-0", 1))
	say(r.XRevRange(ctx, "s", "+", "-"))
	say(r.XRevRangeN(ctx, "s", "+", "-", 2))
	say(r.XRead(ctx, &redis.XReadArgs{Streams: []string{"s", "0"}, Count: 2, Block: -1}))
	say(r.XRead(ctx, &redis.XReadArgs{Streams: []string{"s"}, ID: "99-0", Block: 20 * time.Millisecond}))
	say(r.XReadStreams(ctx, "s", "7-0"))
	say(r.XGroupCreate(ctx, "s", "g", "0"))
	say(r.XGroupCreate(ctx, "s", "g", "0"))
	say(r.XGroupCreateMkStream(ctx, "t", "g", "$"))
	say(r.XGroupCreateConsumer(ctx, "s", "g", "idle"))
	read := func(group, id string, count int64, noAck bool) {
		say(r.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{"s", id}, Count: count, NoAck: noAck, Block: -1}))
	}
	read("g", ">", 4, false)
	read("g", "0", 2, false)
	read("g", ">", 1, true)
	read("none", ">", 1, false)
	say(r.XAck(ctx, "s", "g", "3-0", "77-0"))
	say(r.XPending(ctx, "s", "g"))
	pending, err := r.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: "s", Group: "g", Start: "-", End: "+", Count: 9, Consumer: "c"}).Result()
	for _, one := range pending {
		fmt.Println("xpending", one.ID, one.Consumer, one.RetryCount, err)
	}
	say(r.XClaim(ctx, &redis.XClaimArgs{Stream: "s", Group: "g", Consumer: "d", Messages: []string{"4-0"}}))
	say(r.XClaimJustID(ctx, &redis.XClaimArgs{Stream: "s", Group: "g", Consumer: "d", Messages: []string{"5-0", "77-0"}}))
	say(r.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: "s", Group: "g", Consumer: "e", Start: "0", Count: 1}))
	say(r.XAutoClaimJustID(ctx, &redis.XAutoClaimArgs{Stream: "s", Group: "g", Consumer: "e", Start: "5-0"}))
	say(r.XInfoStream(ctx, "s"))
	full, err := r.XInfoStreamFull(ctx, "s", 2).Result()
	fmt.Println("xinfo full", full.Length, full.LastGeneratedID, full.MaxDeletedEntryID, full.EntriesAdded, full.RecordedFirstEntryID, full.Entries, err)
	for _, group := range full.Groups {
		fmt.Println(group.Name, group.LastDeliveredID, group.EntriesRead, group.Lag, group.PelCount, len(group.Pending))
		for _, consumer := range group.Consumers {
			fmt.Println(consumer.Name, consumer.PelCount, len(consumer.Pending))
		}
	}
	say(r.XInfoGroups(ctx, "s"))
	consumers, err := r.XInfoConsumers(ctx, "s", "g").Result()
	for _, consumer := range consumers {
		fmt.Println("xinfo consumers", consumer.Name, consumer.Pending, err)
	}
	say(r.XAckDel(ctx, "s", "g", "ACKED", "4-0"))
	say(r.XDelEx(ctx, "s", "DELREF", "5-0", "77-0"))
	say(r.XDel(ctx, "s", "6-0", "77-0"))
	say(r.XAutoClaimWithDeleted(ctx, &redis.XAutoClaimArgs{Stream: "s", Group: "g", Consumer: "e", Start: "0"}))
	say(r.XTrimMaxLenMode(ctx, "s", 3, "DELREF"))
	say(r.XTrimMinIDMode(ctx, "s", "6-0", "KEEPREF"))
	say(r.XTrimMaxLen(ctx, "s", 2))
	say(r.XTrimMaxLenApprox(ctx, "s", 1, 5))
	say(r.XTrimMinID(ctx, "s", "8-0"))
	say(r.XTrimMinIDApprox(ctx, "s", "8-0", 5))
	say(r.XGroupSetID(ctx, "s", "g", "7-0"))
	say(r.XGroupDelConsumer(ctx, "s", "g", "e"))
	go func() {
		time.Sleep(200 * time.Millisecond)
		redis.NewClient(options).XAdd(ctx, &redis.XAddArgs{Stream: "t", ID: "1-0", Values: fields})
	}()
	say(r.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{"t", ">"}, Block: 9 * time.Second}))
	say(r.XGroupDestroy(ctx, "s", "g"))
	say(r.XInfoGroups(ctx, "none"))
	say(r.ClientGetName(ctx))
}
