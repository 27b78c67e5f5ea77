#ifndef SUPERVISOR_CONFIG_VALIDATE_H_
#define SUPERVISOR_CONFIG_VALIDATE_H_

#include "google/protobuf/text_format.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/node.h"

namespace baton {

// Fills in the defaults of `config` and adds to `problems` every value that is out of its range.
// `places` tells where in the file a field stands; null when there is no file.
void CompleteAndValidate(v1::Config& config, google::protobuf::TextFormat::ParseInfoTree* places,
                         Problems& problems);

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_VALIDATE_H_
