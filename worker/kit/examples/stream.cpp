// Two ends of a stream without Baton, which send each other messages of many lengths. The network
// is a copy in memory here. A program that talks to a service has ibv_post_recv, ibv_post_send and
// ibv_poll_cq in its place, as baton/peer.h says.
#include <baton/baton.h>
#include <baton/peer.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kRingBytes = 4096;
constexpr uint32_t kStagingBytes = 4096;
constexpr uint64_t kMessages = 3000;

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "stream: " << what << "\n";
  std::exit(1);
}
void Check(int code) {
  if (code != BATON_OK) Fail(baton_peer_error());
}

std::string MessageOf(uint64_t number) {
  return std::string(number * 131 % kRingBytes / 2, '.') + std::to_string(number);
}

struct End {
  std::vector<uint8_t> memory = std::vector<uint8_t>(kRingBytes + kStagingBytes);
  uint32_t receives = 0;                // posted
  std::deque<baton_peer_write> writes;  // posted, in order
  baton_peer* peer = nullptr;
  uint64_t sent = 0, received = 0;  // messages
};

void Open(End& end) {
  baton_peer_options options = {};
  options.size = sizeof(options);
  options.context = &end;
  options.post_receive = [](void* context) {
    ++static_cast<End*>(context)->receives;
    return 0;
  };
  options.post_write = [](void* context, const baton_peer_write* write) {
    static_cast<End*>(context)->writes.push_back(*write);
    return 0;
  };
  options.memory = end.memory.data();
  options.ring_bytes = kRingBytes;
  options.staging_bytes = kStagingBytes;
  options.window = 8;
  options.sends = 16;
  Check(baton_peer_open(&options, &end.peer));
}

void Greet(const End& from, End& to) {
  uint8_t greeting[BATON_PEER_GREETING_BYTES];
  baton_peer_greeting(from.peer, greeting);
  Check(baton_peer_begin(to.peer, greeting, sizeof(greeting)));
}

void SendMore(End& end) {
  while (end.sent < kMessages) {
    const std::string message = MessageOf(end.sent);
    const int code = baton_peer_send(end.peer, message.data(), message.size());
    if (code == BATON_RESOURCE_EXHAUSTED) return;
    Check(code);
    ++end.sent;
  }
}

// A receive of `end` has completed.
void Receive(End& end, uint32_t immediate, uint32_t byte_len) {
  baton_peer_event event = {};
  event.size = sizeof(event);
  Check(baton_peer_received(end.peer, immediate, byte_len, &event));
  if (!event.has_message) return;
  const std::string message(static_cast<const char*>(event.message), event.length);
  if (message != MessageOf(end.received)) Fail("another message has come than was sent");
  ++end.received;
  Check(baton_peer_release(end.peer, &event));
}

void Carry(End& from, End& to) {
  while (!from.writes.empty()) {
    const baton_peer_write write = from.writes.front();
    from.writes.pop_front();
    if (to.receives == 0) Fail("the receiver is not ready");
    --to.receives;
    if (write.length != 0) {
      std::memcpy(reinterpret_cast<void*>(write.remote_address), write.data, write.length);
    }
    Check(baton_peer_sent(from.peer, write.wr_id));
    Receive(to, write.immediate, write.length);
  }
}

}  // namespace

int main() {
  End a, b;
  Open(a);
  Open(b);
  Greet(a, b);
  Greet(b, a);
  for (uint64_t turn = 0; a.received < kMessages || b.received < kMessages; ++turn) {
    if (turn == 10 * kMessages) Fail("no message comes any more");
    SendMore(a);
    SendMore(b);
    Carry(a, b);
    Carry(b, a);
  }
  baton_peer_close(a.peer);
  baton_peer_close(b.peer);
  std::cout << kMessages << " messages each way\n";
  return 0;
}
