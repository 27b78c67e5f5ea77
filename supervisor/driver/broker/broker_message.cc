#include "supervisor/driver/broker/broker_message.h"

#include <cstring>
#include <utility>

#include "lib/nic/control_socket.h"

namespace baton::driver_process {

// A message whose descriptor finds no free place here counts without it.
std::optional<ReceivedMessage> ReceiveMessage(int socket) {
  nic::ControlMessage packet;
  const nic::Received what = nic::Receive(socket, &packet);
  if (what != nic::Received::kMessage && what != nic::Received::kNoDescriptor) return std::nullopt;
  ReceivedMessage received;
  if (packet.size != sizeof(received.message)) return std::nullopt;
  std::memcpy(&received.message, packet.bytes.data(), sizeof(received.message));
  received.descriptor = std::move(packet.passed);
  return received;
}

}  // namespace baton::driver_process
