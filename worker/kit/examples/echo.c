/* Sends back what it receives, across upgrades and crashes. echo.cpp is the same in C++. */
#include <baton/baton.h>
#include <stdio.h>

enum { kBytes = 4096, kWindow = 16 };

/* Each buffer belongs to one request at a time, which carries its number as the tag. */
static struct baton_buffer BufferOf(const struct baton_connection* connection, uint64_t tag,
                                    uint32_t length) {
  const uint64_t slot = (uint64_t)baton_connection_index(connection) * kWindow + tag;
  return (struct baton_buffer){slot * kBytes, length};
}

static void Receive(struct baton_shard* shard, struct baton_connection* connection, uint64_t tag) {
  const struct baton_buffer buffer = BufferOf(connection, tag, kBytes);
  if (baton_receive(shard, connection, &buffer, 1, tag) != BATON_OK) {
    baton_disconnect(shard, connection);
  }
}

static void OnCompletion(void* context, struct baton_shard* shard,
                         const struct baton_completion* done) {
  struct baton_connection* const connection = done->connection;
  (void)context;
  if (done->kind == BATON_CONNECT_REQUEST) {
    for (uint64_t tag = 0; tag < kWindow; ++tag) Receive(shard, connection, tag);
    baton_accept(shard, connection, NULL, NULL, 0);
  } else if (done->status == BATON_SUCCESS && done->kind == BATON_RECEIVE) {
    const struct baton_buffer reply = BufferOf(connection, done->tag, done->byte_len);
    const struct baton_send_work work = {
        .size = sizeof(work), .buffers = &reply, .buffer_count = 1, .tag = done->tag};
    baton_send(shard, connection, &work);
  } else if (done->status == BATON_SUCCESS && done->kind == BATON_SEND) {
    Receive(shard, connection, done->tag);
  }
} /* The batch is committed after this: what was received, sent and posted again, or none of it. */

int main(int argc, char** argv) {
  const struct baton_service service = {.size = sizeof(service), .on_completion = OnCompletion};
  struct baton_worker_options options = BATON_WORKER_OPTIONS_INIT;
  struct baton_worker* worker = NULL;
  options.socket = argc > 1 ? argv[1] : "";
  options.service = "echo";
  options.version = "c";
  int code = baton_attach(&options, &service, &worker);
  if (code == BATON_OK) code = baton_listen(worker, "0.0.0.0", 7471, NULL);
  if (code == BATON_OK) code = baton_run(worker);
  if (code != BATON_OK) fprintf(stderr, "echo: %s\n", baton_error());
  baton_detach(worker);
  return code == BATON_OK ? 0 : 1;
}
