/* Sends back what it receives, across upgrades and crashes. echo.cpp is the same in C++.
 *
 * The connections of a shard share its receives (shared_receive_queue_depth of the service): one
 * that is idle needs none. */
#include <baton/baton.h>
#include <stdio.h>
#include <string.h>

enum { kBytes = 1024 };
static struct baton_capacity capacity = {.size = sizeof(capacity)};
static uint8_t* buffers;

/* The buffers of a shard's receives, one for each slot, are behind those of all answers. */
static struct baton_buffer RequestBuffer(const struct baton_shard* shard, uint64_t slot,
                                         uint32_t length) {
  const uint64_t answers = (uint64_t)capacity.connections * 2 * capacity.send_queue_depth;
  const uint64_t receives = (uint64_t)baton_shard_index(shard) * 2;
  const uint64_t first = answers + receives * capacity.shared_receive_queue_depth;
  return (struct baton_buffer){(first + slot) * kBytes, length};
}
/* Of the next send. No other that is outstanding has it. */
static struct baton_buffer AnswerBuffer(const struct baton_connection* connection,
                                        uint32_t length) {
  const uint64_t sends = 2 * (uint64_t)capacity.send_queue_depth;
  const uint64_t place = baton_connection_index(connection) * sends;
  const uint64_t next = baton_connection_next_send(connection) % sends;
  return (struct baton_buffer){(place + next) * kBytes, length};
}

/* Receives outlive workers: the first owner posts all, each owner one for each that completed. */
static int PostReceives(void* context, struct baton_shard* shard) {
  int code = BATON_OK;
  (void)context;
  while (code == BATON_OK && baton_shared_receive_room(shard) > 0) {
    const struct baton_buffer buffer =
        RequestBuffer(shard, baton_next_shared_receive(shard), kBytes);
    code = baton_receive_shared(shard, &buffer, 1, 0);
  }
  return code;
}

static int Answer(struct baton_shard* shard, const struct baton_completion* done) {
  const struct baton_buffer request = RequestBuffer(shard, done->sequence, done->byte_len);
  const struct baton_buffer answer = AnswerBuffer(done->connection, done->byte_len);
  const struct baton_send_work work = {.size = sizeof(work), .buffers = &answer, .buffer_count = 1};
  memcpy(buffers + answer.offset, buffers + request.offset, request.length);
  return baton_send(shard, done->connection, &work);
}

static void OnCompletion(void* context, struct baton_shard* shard,
                         const struct baton_completion* done) {
  if (done->kind == BATON_CONNECT_REQUEST) {
    baton_accept(shard, done->connection, NULL, NULL, 0);
  } else if (done->kind == BATON_RECEIVE) {
    if (done->status == BATON_SUCCESS && Answer(shard, done) != BATON_OK) {
      baton_disconnect(shard, done->connection);
    }
    PostReceives(context, shard);
  }
} /* The batch is committed after this: what was received, sent and posted again, or none of it. */

int main(int argc, char** argv) {
  const struct baton_service service = {
      .size = sizeof(service), .on_adopt = PostReceives, .on_completion = OnCompletion};
  struct baton_worker_options options = BATON_WORKER_OPTIONS_INIT;
  struct baton_worker* worker = NULL;
  size_t length = 0;
  options.socket = argc > 1 ? argv[1] : "";
  options.service = "echo";
  options.version = "c";
  int code = baton_attach(&options, &service, &worker);
  if (code == BATON_OK) {
    baton_get_capacity(worker, &capacity);
    buffers = baton_buffers(worker, &length);
    if (capacity.shared_receive_queue_depth == 0) {
      fprintf(stderr, "echo: the service needs a shared_receive_queue_depth\n");
      baton_detach(worker);
      return 1;
    }
    code = baton_listen(worker, "0.0.0.0", 7471, NULL);
  }
  if (code == BATON_OK) code = baton_run(worker);
  if (code != BATON_OK) fprintf(stderr, "echo: %s\n", baton_error());
  baton_detach(worker);
  return code == BATON_OK ? 0 : 1;
}
