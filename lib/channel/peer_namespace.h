#ifndef LIB_CHANNEL_PEER_NAMESPACE_H_
#define LIB_CHANNEL_PEER_NAMESPACE_H_

namespace baton {

// Whether the process that connected is in another pid namespace than this process, as in a
// container with one of its own, or cannot be judged. Nobody leaves such a namespace for one above
// it. Before Linux 6.5 it is about the process that has the number now.
bool IsPeerContained(int socket);

}  // namespace baton

#endif  // LIB_CHANNEL_PEER_NAMESPACE_H_
