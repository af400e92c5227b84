// What systemd asks of a service: sd_listen_fds(3) and sd_notify(3), without its library.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cairn {

// The sockets that this process was started with, by "systemd:NAME" (FileDescriptorName= of their
// unit). Takes them out of the environment, so that no child takes them for its own.
std::map<std::string, int> SocketsOfServiceManager();

// Sends `state` ("READY=1") where NOTIFY_SOCKET says; nothing when nobody asked.
void TellServiceManager(std::string_view state);

}  // namespace cairn
