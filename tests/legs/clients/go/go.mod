module streams

go 1.24

require github.com/redis/go-redis/v9 v9.23.0
