package rpc

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// UnbuiltCommand is a virsh command that is not built, and what a user can do instead.
type UnbuiltCommand struct {
	Command, alternative string
	// Calls are the names of its calls, with blanks between them. A * at the end stands for any rest.
	Calls string
}

// UnbuiltCommands name the features that are not built, in words that users know. The first
// entry that matches a call counts.
var UnbuiltCommands = []UnbuiltCommand{
	{"virsh migrate", "move the guest with virsh save and restore over shared storage", "DOMAIN_MIGRATE_*"},
	{"a login by SASL", "use certificates (lodged --tls) or the host's own sockets", "AUTH_SASL_*"},
	{"reading a guest's disk or memory", "use virsh dump, or qemu-img on a volume of a guest that is off", "DOMAIN_BLOCK_PEEK DOMAIN_MEMORY_PEEK"},
	{"virsh nodedev-reset", "PCI devices are reset when a guest with <hostdev> starts", "NODE_DEVICE_RESET"},
	{"virsh nodedev-create", "make the device with the host's own tools", "NODE_DEVICE_CREATE_XML"},
	{"virsh nodedev-destroy", "remove the device with the host's own tools", "NODE_DEVICE_DESTROY"},
	{"virsh nodedev-define", "make the device with the host's own tools", "NODE_DEVICE_DEFINE_XML"},
	{"virsh nodedev-undefine", "remove the device with the host's own tools", "NODE_DEVICE_UNDEFINE"},
	{"virsh nodedev-start", "make the device with the host's own tools", "NODE_DEVICE_CREATE"},
	{"virsh nodedev-autostart", "make the device with the host's own tools", "NODE_DEVICE_SET_AUTOSTART"},
	{"virsh nodedev-update", "change the device with the host's own tools", "NODE_DEVICE_UPDATE"},
	{"virsh iface-define", "use the host's own network configuration", "INTERFACE_DEFINE_XML"},
	{"virsh iface-undefine", "use the host's own network configuration", "INTERFACE_UNDEFINE"},
	{"virsh iface-start", "use the host's own network configuration", "INTERFACE_CREATE"},
	{"virsh iface-destroy", "use the host's own network configuration", "INTERFACE_DESTROY"},
	{"virsh iface-begin", "use the host's own network configuration", "INTERFACE_CHANGE_BEGIN"},
	{"virsh iface-commit", "use the host's own network configuration", "INTERFACE_CHANGE_COMMIT"},
	{"virsh iface-rollback", "use the host's own network configuration", "INTERFACE_CHANGE_ROLLBACK"},
	{"virsh domxml-from-native", "write the domain's XML, as by virt-install --print-xml", "CONNECT_DOMAIN_XML_FROM_NATIVE"},
	{"virsh domxml-to-native", "look at the arguments of the running QEMU in the host's process list", "CONNECT_DOMAIN_XML_TO_NATIVE"},
	{"a client's older way to hear of events", "use a client library of libvirt 1.0 or later", "CONNECT_DOMAIN_EVENT_*"},
	{"virsh nwfilter-define", "isolate guests with <port isolated='yes'/> or by networks of their own", "NWFILTER_DEFINE_*"},
	{"virsh nwfilter-undefine", "there are no filters to undefine", "NWFILTER_UNDEFINE"},
	{"virsh nwfilter-binding-create", "isolate guests with <port isolated='yes'/> or by networks of their own", "NWFILTER_BINDING_CREATE_XML"},
	{"virsh nwfilter-binding-delete", "there are no bindings to delete", "NWFILTER_BINDING_DELETE"},
	{"virsh nwfilter-binding-dumpxml", "there are no bindings to show", "NWFILTER_BINDING_*"},
	{"virsh nwfilter-dumpxml", "there are no filters to show", "NWFILTER_*"},
	{"virsh snapshot-create", "copy the volume of a guest that is off with virsh vol-clone, or keep its state with virsh save", "DOMAIN_SNAPSHOT_CREATE_XML"},
	{"virsh snapshot-revert", "start the guest from a copy of its volume", "DOMAIN_REVERT_TO_SNAPSHOT"},
	{"virsh snapshot-delete", "remove the copy with virsh vol-delete", "DOMAIN_SNAPSHOT_DELETE"},
	{"virsh snapshot-dumpxml", "there are no snapshots to show", "DOMAIN_SNAPSHOT_*"},
	{"virsh checkpoint-create", "copy the volume of a guest that is off with virsh vol-clone", "DOMAIN_CHECKPOINT_CREATE_XML"},
	{"virsh checkpoint-dumpxml", "there are no checkpoints to show", "DOMAIN_CHECKPOINT_*"},
	{"virsh backup-begin", "copy the volume of a guest that is off with virsh vol-clone", "DOMAIN_BACKUP_BEGIN"},
	{"virsh blockpull", "shut the guest off and use qemu-img rebase", "DOMAIN_BLOCK_PULL"},
	{"virsh blockcopy or blockpull --base", "shut the guest off and use virsh vol-clone or qemu-img rebase", "DOMAIN_BLOCK_REBASE"},
	{"virsh blockcopy", "shut the guest off and use virsh vol-clone", "DOMAIN_BLOCK_COPY"},
	{"virsh domblkthreshold", "watch the figures of virsh domblkinfo", "DOMAIN_SET_BLOCK_THRESHOLD"},
	{"virsh domthrottlegroupset", "use virsh blkdeviotune", "DOMAIN_SET_THROTTLE_GROUP"},
	{"virsh domthrottlegroupdel", "use virsh blkdeviotune", "DOMAIN_DEL_THROTTLE_GROUP"},
	{"virsh nodesuspend", "use systemctl suspend on the host", "NODE_SUSPEND_FOR_DURATION"},
	{"virsh dompmsuspend", "suspend from within the guest, or use virsh suspend or managedsave", "DOMAIN_PM_SUSPEND_FOR_DURATION"},
	{"virsh send-process-signal", "end the process from within the guest", "DOMAIN_SEND_PROCESS_SIGNAL"},
	{"virsh iothreaddel", "change <iothreads> with virsh edit and start the guest again", "DOMAIN_DEL_IOTHREAD"},
	{"virsh iothreadset", "leave QEMU's own settings", "DOMAIN_SET_IOTHREAD_PARAMS"},
	{"virsh perf", "use perf on the host", "DOMAIN_GET_PERF_EVENTS DOMAIN_SET_PERF_EVENTS"},
	{"virsh guestvcpus", "use virsh setvcpus", "DOMAIN_SET_GUEST_VCPUS"},
	{"virsh setvcpu", "use virsh setvcpus", "DOMAIN_SET_VCPU"},
	{"virsh nodesevinfo", "guests with SEV are not built", "NODE_GET_SEV_INFO"},
	{"virsh domlaunchsecinfo", "guests with SEV are not built", "DOMAIN_GET_LAUNCH_SECURITY_INFO"},
	{"virsh domsetlaunchsecstate", "guests with SEV are not built", "DOMAIN_SET_LAUNCH_SECURITY_STATE"},
	{"virsh net-port-create", "give the guest an <interface type='network'>", "NETWORK_PORT_CREATE_XML"},
	{"virsh net-port-delete", "take the interface out of the guest with virsh detach-interface", "NETWORK_PORT_DELETE"},
	{"virsh net-port-dumpxml", "use virsh domiflist and virsh domiftune", "NETWORK_PORT_*"},
	{"a client's word on who uses it", "connect as that user", "CONNECT_SET_IDENTITY"},
	{"virsh guest-agent-timeout", "give each agent command its own --timeout", "DOMAIN_AGENT_SET_RESPONSE_TIMEOUT"},
	{"virsh get-user-sshkeys", "read the keys within the guest", "DOMAIN_AUTHORIZED_SSH_KEYS_GET"},
	{"virsh set-user-sshkeys", "write the keys within the guest, as by cloud-init", "DOMAIN_AUTHORIZED_SSH_KEYS_SET"},
	{"virsh domdirtyrate-calc", "watch virsh dommemstat", "DOMAIN_START_DIRTY_RATE_CALC"},
	{"virsh dom-fd-associate", "name the file in the domain's XML", "DOMAIN_FD_ASSOCIATE"},
	{"virsh domdisplay-reload", "start the guest again", "DOMAIN_GRAPHICS_RELOAD"},
	{"virsh qemu-attach", "define the guest from XML", "DOMAIN_ATTACH"},
	{"virsh qemu-monitor-event", "use virsh event", "CONNECT_DOMAIN_MONITOR_EVENT_*"},
	{"virsh qemu-monitor-command --pass-fds", "use it without files", "DOMAIN_MONITOR_COMMAND_WITH_FILES"},
}

// ErrNotBuilt is the error for a call that is not built.
func ErrNotBuilt(p *xdr.Procedure) error {
	text := FunctionName(p.Name) + " is not built; leave it out"
	if u, ok := UnbuiltCommandOf(p.Name); ok {
		text = u.Command + " is not built; " + u.alternative
	}
	return WithCode(CodeNoSupport, fault.New(fault.Unsupported, fault.Call, "%s", text))
}

// UnbuiltCommandOf returns the command that a call belongs to; false: no entry matches.
func UnbuiltCommandOf(call string) (UnbuiltCommand, bool) {
	for _, u := range UnbuiltCommands {
		for name := range strings.FieldsSeq(u.Calls) {
			prefix, many := strings.CutSuffix(name, "*")
			if name == call || many && strings.HasPrefix(call, prefix) {
				return u, true
			}
		}
	}
	return UnbuiltCommand{}, false
}

// capitals are the parts of a call's name that libvirt's functions do not write with only the
// first letter in upper case.
var capitals = map[string]string{
	"XML": "XML", "CPU": "CPU", "UUID": "UUID", "ID": "ID", "OS": "OS", "MAC": "MAC", "URI": "URI", "FD": "FD", "FDS": "FDs",
	"VCPU": "Vcpu", "VCPUS": "Vcpus", "IOTHREAD": "IOThread", "FS": "FS", "SSH": "SSH", "SEV": "SEV", "PM": "PM", "DHCP": "DHCP",
	"NWFILTER": "NWFilter", "SCSI": "SCSI", "WWN": "WWN", "JSON": "JSON",
}

// FunctionName returns the name of the function of libvirt's library that makes a call:
// virDomainGetState for DOMAIN_GET_STATE.
func FunctionName(call string) string {
	var name strings.Builder
	name.WriteString("vir")
	for word := range strings.SplitSeq(call, "_") {
		if written, ok := capitals[word]; ok {
			name.WriteString(written)
		} else if word != "" {
			name.WriteString(word[:1] + strings.ToLower(word[1:]))
		}
	}
	return name.String()
}
